"""Decisions about the fleet: list, single decision, downloads and endpoints."""
