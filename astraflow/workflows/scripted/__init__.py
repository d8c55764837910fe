"""Workflows without a model: scripted policies, experts that solve tasks, and the check of a workflow."""
