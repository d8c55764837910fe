"""How small deltas are, and how fast: see `__main__`."""
