"""Parts of the local torch engine: sequences, key-value cache slots, sampling, batching, worker thread."""
