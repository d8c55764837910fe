"""Scores of a pack's trained tokens by a transformers model: its forward pass in one of several batchings, then its
head."""
