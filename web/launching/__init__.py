"""Runs that the page starts: the recipes there are, a recipe as a form, and the processes."""
