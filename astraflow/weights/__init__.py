"""Versions of weights and how they travel: layout, bit-exact deltas, plans, the store, publisher and puller. Torch-free."""
