"""Autoscaling of pools: signals, a pure rule that turns them into target sizes, and a simulator that tests the rule."""
