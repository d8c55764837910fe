"""Runs: list, page of one run, its charts and downloads, and endpoints of runs, reports and time series."""
