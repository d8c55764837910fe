"""Tests that a plugin of another package inherits: one suite per interface, with pytest and its plugin anyio."""
