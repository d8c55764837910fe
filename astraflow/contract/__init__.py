"""What is said between services: frozen dataclasses over the standard library and numpy, nothing else."""
