"""Environments of engine servers: `astraflow engines`."""
