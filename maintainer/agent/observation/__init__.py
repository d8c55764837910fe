"""Observation of a run: its snapshot, the signals in it, and the tokens that replace names for a model."""
