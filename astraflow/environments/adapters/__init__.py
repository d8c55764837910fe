"""Adapters, with which environments and games run in worker processes or in a service."""
