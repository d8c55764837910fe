"""Tables: rows of published files, read on demand, from which prompts are made."""
