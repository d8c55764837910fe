"""Pools of a run through its fleet service: `astraflow fleet`."""
