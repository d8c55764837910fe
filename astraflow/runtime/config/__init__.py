"""Configuration of services: classes of options, TOML files, and permissions of settings."""
