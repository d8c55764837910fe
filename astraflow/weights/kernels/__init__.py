"""The loops of the codec over elements, each in two ways: numpy's, which are the reference, and compiled ones."""
