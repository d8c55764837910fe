"""Versions of weights and how they travel: layout, bit-exact deltas, plans, store, publisher, puller. Torch-free."""
