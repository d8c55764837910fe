"""Views: converts a snapshot into figures, enum values and tokens for a model. Pure except for issuing tokens."""
