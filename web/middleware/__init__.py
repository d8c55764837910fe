"""Middleware of every request: authentication, permissions, limits, refusals, and reports of problems."""
