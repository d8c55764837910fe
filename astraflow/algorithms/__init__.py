"""Pure maths on tensors: advantages, masks, losses."""
