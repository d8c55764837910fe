"""Quality of pool sizing in the simulator, and duration of a decision."""
