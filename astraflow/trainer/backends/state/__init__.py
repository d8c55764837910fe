"""State of a backend on disk: tensors, shards, adapters and counts."""
