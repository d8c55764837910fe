"""How good a maintainer is: scenarios in virtual time over the real desk and guard, scored against the rule alone."""
