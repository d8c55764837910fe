"""Checks of parts that others provide against the promises of their interfaces: `astraflow check`."""
