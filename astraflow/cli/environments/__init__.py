"""Environments of other projects: `astraflow environments`."""
