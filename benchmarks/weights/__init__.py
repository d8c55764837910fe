"""Size and speed of deltas: see `__main__`."""
