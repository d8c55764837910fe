"""Scorecard of the maintainer: evaluations of its model, and the live comparison with the rule in this run."""
