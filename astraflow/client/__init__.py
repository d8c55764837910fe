"""How the planes are used: typed async clients, the public door of AstraFlow."""
