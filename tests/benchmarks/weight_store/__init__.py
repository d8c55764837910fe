"""What the weight store costs: catching up, taking versions in, and serving bytes."""
