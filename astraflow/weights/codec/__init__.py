"""Bit-exact deltas between versions: blocks, bands, codes, and the loops over elements."""
