"""Baselines: scores a hosted endpoint or a model folder on the tasks of a recipe, without a run."""
