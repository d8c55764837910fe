"""How long an engine in this process stands still for a version, and what that takes beside it."""
