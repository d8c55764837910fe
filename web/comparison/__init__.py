"""Comparison of runs: page, charts, downloads and endpoint."""
