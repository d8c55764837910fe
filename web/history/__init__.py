"""What is kept of a run's numbers: every second for hours, every ten seconds for days, every five minutes for good."""
