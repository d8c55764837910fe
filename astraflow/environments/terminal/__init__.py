"""Terminals, in which a policy does tasks: the environment, and runners of its tasks."""
