"""Ranks: processes that compute one step together, their start, connections and supervision."""
