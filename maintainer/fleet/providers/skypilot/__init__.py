"""Provider `skypilot`: one SkyPilot cluster of one machine per node."""
