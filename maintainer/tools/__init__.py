"""What the maintainer can do: one registry of typed tools, the same for the loop's model and for MCP."""
