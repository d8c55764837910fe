"""Audit log: sealed entries of who did what, when and from where; queries and retention."""
