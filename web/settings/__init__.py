"""Settings page: own account, users, grants, tokens, providers and exporters, with their endpoints."""
