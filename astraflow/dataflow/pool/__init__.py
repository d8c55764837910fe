"""Membership of the run: nodes and their credentials."""
