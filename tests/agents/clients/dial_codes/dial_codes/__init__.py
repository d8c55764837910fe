"""Tasks of verifiers: find the dial code of a country with a tool, which a server of MCP offers."""

from dial_codes.taskset import DialCodes

__all__ = ["DialCodes"]
