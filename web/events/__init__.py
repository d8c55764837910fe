"""Events of the run: list, single event and downloads."""
