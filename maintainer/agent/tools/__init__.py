"""Tools of the maintainer: one registry of typed tools for the model and for MCP, and the execution of their calls."""
