"""How well pools are sized, in the simulator, and how long a decision takes."""
