"""HTTP: servers inside a process, services that answer JSON, and host addresses."""
