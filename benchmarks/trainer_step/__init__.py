"""Benchmark of training steps: the local engine, a bare Hugging Face loop, and TRL's update, on the same rows."""
