"""Dataflow page and the changes that it offers: flows are paused, and plugins exchanged."""
