"""Cost of nodes and waiting in one figure, for simulated cases and for runs."""

WAIT_WEIGHT = 32.0
"""k: a waiting trainer leaves four machines of eight accelerators idle; a node has one accelerator."""


def cost(*, node_hours: float, wait_hours: float) -> float:
    """J = node-hours + k * wait-hours, with node-hours weighted by price over one dollar an hour.

    AstraFlow's rule is tuned for J; k is the value of one hour of a waiting trainer in nodes.
    """
    return node_hours + WAIT_WEIGHT * wait_hours
