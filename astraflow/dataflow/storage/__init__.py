"""Durable storage of a run: the journal, segments of payload, and plugin state by prompt."""
