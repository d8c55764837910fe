"""Serves the maintainer's tools over MCP, on standard input and output or over HTTP."""
