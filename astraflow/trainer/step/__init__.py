"""A training step: packs, shares of the ranks, passes and optimizer steps, metrics."""
