"""Provider `slurm`: one batch job of a Slurm cluster per node."""
