"""Tasks in environments: household games, shops, terminals, crafting, experiments, and games for two players."""
