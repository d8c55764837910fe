"""Worker processes for calls of rewards that may hang or use up memory."""
