"""Reporting: counts become reports, reports become history."""
