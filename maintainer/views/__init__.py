"""From what is seen to what a model is told: numbers, closed choices, tokens. Pure, but for the tokens it gives out."""
