"""Measurements: signals of nodes and trainers, from the reports of a live or recorded run."""
