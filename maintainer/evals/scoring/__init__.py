"""Scores of cases, the usage of a model, and the file that holds the results."""
