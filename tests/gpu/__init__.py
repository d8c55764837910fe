"""Tests and benchmarks for a GPU, in one command: `make gpu`. With `--device cpu` they run on a CPU at small sizes."""
