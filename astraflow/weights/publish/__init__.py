"""Publication by trainers: staging buffers, and versions sent whole, as deltas or in parts."""
