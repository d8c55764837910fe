"""Reinforcement learning for LLM agents as three autonomous services that meet only in typed messages."""
