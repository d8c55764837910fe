"""Hosted model endpoints, which are evaluated and not trained: client, formats, policy and session."""
