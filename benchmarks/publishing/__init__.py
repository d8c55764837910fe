"""Pause of the trainer during a publish, and the cost outside the pause."""
