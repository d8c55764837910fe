"""What the local torch engine is made of: sequences, slots of the key-value cache, sampling, batching, a thread."""
