"""Recipe of a run: the configurations of all roles, loaded from TOML."""
