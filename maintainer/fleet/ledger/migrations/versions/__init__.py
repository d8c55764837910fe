"""Migrations of the tables, one module each."""
