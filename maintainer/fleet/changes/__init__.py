"""Changes of the fleet: plans, proposals, holds, the kill switch, and targets of the rule."""
