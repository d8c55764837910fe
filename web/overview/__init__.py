"""Overview page of the run, and its charts at full width."""
