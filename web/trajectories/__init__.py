"""Trajectories: list, groups, conversations with their tokens and calls, live sessions of agents, and endpoints."""
