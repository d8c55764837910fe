"""Fetching of everything that a recipe downloads into one data root, which offline machines read."""
