"""Fleet plane: pools, instances, plans and decisions, recommendations of sizes, and the maintainer."""
