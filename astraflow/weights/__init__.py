"""Versions of weights and their transfer: layout, bit-exact deltas, plans, store, publisher, puller. Torch-free."""
