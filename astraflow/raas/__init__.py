"""Rollout role: leases tasks, runs them as episodes and follows the policies' weights."""
