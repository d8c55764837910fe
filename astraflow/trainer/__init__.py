"""The training role: pull a batch, step, publish, for one policy."""
