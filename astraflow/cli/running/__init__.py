"""A whole run on this machine: `demo`, `run` and `prepare`, its processes and their supervisor."""
