"""Who takes part: nodes that joined, and nodes that went quiet."""
