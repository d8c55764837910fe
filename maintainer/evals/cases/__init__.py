"""Cases of an evaluation: simulated runs with faults of their provider and attacks on the model."""
