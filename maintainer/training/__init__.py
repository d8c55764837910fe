"""Training of a maintainer by AstraFlow itself: boards as a data set, and the simulated run as an environment."""
