"""Parts of which workflows consist: requests, conversations, roles, tool calls, and trajectories with exact tokens."""
