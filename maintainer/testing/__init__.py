"""Tests that a provider of another package inherits, and the harness that such a provider needs."""
