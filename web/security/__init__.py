"""Roles, resources, addresses, problems, and the audit log: sealed entries of who did what, when and from where."""
