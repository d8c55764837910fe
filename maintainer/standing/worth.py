"""What nodes and waiting cost together: one figure for a simulated case and for a run."""

WAIT_WEIGHT = 32.0
"""k: while a trainer waits, its own four machines of eight accelerators stand still; a node has one."""


def cost(*, node_hours: float, wait_hours: float) -> float:
    """J = node-hours + k * wait-hours, node-hours at the price of their machines over an ordinary dollar an hour.

    It is what AstraFlow's own rule is tuned for; k says what an hour of a trainer that waits is worth in nodes.
    """
    return node_hours + WAIT_WEIGHT * wait_hours
