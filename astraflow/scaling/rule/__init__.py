"""The rule: a pure function from signals to the recommended size of each pool."""
