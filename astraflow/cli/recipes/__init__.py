"""Recipes before a run: `recipes` and `new`, the launch form, limits, needs and the dry run."""
