"""Serving: chooses the groups of a trainer's next batch."""
