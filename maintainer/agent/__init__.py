"""The agent: wakes on signals, converses with a language model that calls tools, and verifies the changes."""
