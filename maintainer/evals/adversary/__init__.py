"""Adversary: a model that calls the tools at random, and its encounters with a fleet in a random state."""
