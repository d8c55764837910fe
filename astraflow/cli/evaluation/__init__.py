"""Scores of versions, endpoints and models: `astraflow evaluate`."""
