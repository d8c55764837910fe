"""Maintainer: the agent that proposes pool sizes, and the fleet service that applies them."""
