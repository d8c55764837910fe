"""The toolbox under every service: configuration, clock, retries, plug-ins, logs, and the life of a process."""
