"""Single roles of a run: `serve` and `join`, their tokens, keys and health."""
