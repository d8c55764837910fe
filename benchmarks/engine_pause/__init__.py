"""Pause of an in-process engine during a weight swap, and the work outside the pause."""
