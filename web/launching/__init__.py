"""Launching of runs: catalogue of recipes, recipes as forms, and processes of launched runs."""
