"""Child processes: their start, output, requests and end, and what they do to end with their parent."""
