"""Saved views of a user: page and endpoints."""
