"""Rollouts: tasks, generation, and the episodes and trajectories that a node returns."""
