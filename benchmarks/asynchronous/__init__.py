"""Asynchronous against synchronous: two policies with long-tailed rollouts."""
