"""Shared foundation of every service: configuration, clock, retries, plugins, logs, process lifecycle."""
