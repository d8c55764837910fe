"""History of a run: reports, events, sampled trajectories and evaluation rounds, stored and watched."""
