"""Recorded history of a run: every second for hours, every ten seconds for days, every five minutes indefinitely."""
