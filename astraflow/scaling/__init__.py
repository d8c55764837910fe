"""How large the pools should be: signals, a pure rule that turns them into targets, and a simulator that tries it."""
