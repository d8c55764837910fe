"""Group rewards, which compare the completions of a group."""
