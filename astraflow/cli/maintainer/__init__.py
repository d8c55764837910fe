"""The maintainer of a run: `astraflow maintainer` and `astraflow mcp`."""
