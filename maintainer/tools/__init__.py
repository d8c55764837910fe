"""Tools of the maintainer: one registry of typed tools for the model and for MCP."""
