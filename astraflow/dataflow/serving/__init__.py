"""At the batch: what a trainer learns from next."""
