"""Carries out calls of tools: checks what came, reads, plans through the fleet service, does what the mode allows."""
