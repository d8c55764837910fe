"""Tasks of a node: leases them within its limits, runs them as episodes, and holds results until dataflow has them."""
