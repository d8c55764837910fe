"""The command line: one role, a whole run on this machine, and looking at a run."""
