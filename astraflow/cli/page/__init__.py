"""The page of runs: `runs`, `audit` and `login-link`."""
