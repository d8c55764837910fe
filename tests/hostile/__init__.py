"""What peers, policies and files may send against a run of real processes, and what must come out."""
