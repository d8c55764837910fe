"""Executes tool calls: validates arguments, reads, plans through the fleet service, applies what the mode allows."""
