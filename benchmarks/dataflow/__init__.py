"""Throughput and latency of dataflow: see `__main__`."""
