"""Whoever decides on the size of pools, and the one service that acts on it."""
