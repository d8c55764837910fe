"""Models of a run for other programs: `export` and `chat`."""
