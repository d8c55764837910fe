"""Attention over packs: segments, the port of the kernels, and kernels for CPUs and GPUs."""
