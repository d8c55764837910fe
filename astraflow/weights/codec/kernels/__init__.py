"""Loops of the codec over elements, in two implementations: numpy (the reference) and compiled."""
