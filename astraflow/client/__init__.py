"""Typed asynchronous clients of the planes: the public API of AstraFlow."""
