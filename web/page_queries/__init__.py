"""Queries of pages: live and recorded runs, decisions, samples and comparisons, also as downloads."""
