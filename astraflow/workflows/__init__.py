"""One episode: how a task becomes trajectories."""
