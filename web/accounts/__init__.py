"""Accounts: users, their sessions, tokens, grants and passwords, and login through an OpenID provider."""
