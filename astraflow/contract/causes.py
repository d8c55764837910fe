"""Causes of the end of a node or its instance."""

from enum import Enum


class Cause(Enum):
    """Cause of the end of a node or instance. The first recorded cause is final, except that `LOST` becomes `PREEMPTED`
    when the provider reports a preemption later."""

    REQUESTED = "requested"
    """A person, the scaling rule or a program requested it."""
    PREEMPTED = "preempted"
    """The provider reclaims the instance after a notice, as with spot instances."""
    LOST = "lost"
    """Terminated or unreachable after it had worked, without a request."""
    FAILED = "failed"
    """Never worked: launch refused, stuck, too late, or terminated before the node joined."""
    EXPIRED = "expired"
    """Reached the maximum age of instances."""
    INCONSISTENT = "inconsistent"
    """Observations contradicted its recorded state for too long."""


LOSSES = (Cause.PREEMPTED, Cause.LOST)
"""Causes that count as losses: the node worked and ended without a request."""
