"""Ledger of the fleet service: its database, records, and the life cycle of launches and instances."""
