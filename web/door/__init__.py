"""The door of every request: who asks, from where, about what, and whether that may be; and how a refusal is told."""
