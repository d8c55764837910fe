"""Reporting: counts of a run become its report, with problems, constraints and recommended sizes."""
