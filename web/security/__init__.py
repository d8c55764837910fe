"""Security of every request: authentication, origin, permissions, limits, and refusals."""
