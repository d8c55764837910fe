"""Changes of the fleet: plans, proposals, manual overrides, the kill switch, and targets of the rule."""
