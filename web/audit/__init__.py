"""Audit page, its endpoints and downloads, and the program `python -m web.audit`."""
