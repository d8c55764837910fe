"""Followed runs: their connections, and the updates that browsers receive."""
