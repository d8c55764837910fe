"""Evaluations of a maintainer: cases in virtual time over the real fleet manager and guard, compared with the rule
alone."""
