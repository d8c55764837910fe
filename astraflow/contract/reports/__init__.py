"""State of a run: the report, evaluations, kinds of events, and queries of recorded data."""
