"""Launching of runs: catalogue of recipes, options of a launch, and processes of launched runs."""
