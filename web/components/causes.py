"""Causes why a node or its instance ended, in words."""

from collections.abc import Mapping

from astraflow.contract.fleet.instances import Cause
from web.components import formats

CAUSE_TEXTS = {
    Cause.REQUESTED: "requested",
    Cause.PREEMPTED: "preempted",
    Cause.LOST: "lost",
    Cause.FAILED: "failed to start",
    Cause.EXPIRED: "maximum age reached",
    Cause.INCONSISTENT: "inconsistent state",
}

CAUSE_COUNT_TEXTS = {
    Cause.REQUESTED: "requested",
    Cause.PREEMPTED: "preempted",
    Cause.LOST: "lost",
    Cause.FAILED: "failed to start",
    Cause.EXPIRED: "maximum age reached",
    Cause.INCONSISTENT: "inconsistent",
}


def with_cause(state: str, cause: Cause | None) -> str:
    """Returns a state with its cause; a requested change is shown without one.

    >>> with_cause("draining", Cause.PREEMPTED), with_cause("draining", Cause.REQUESTED), with_cause("ready", None)
    ('draining: preempted', 'draining', 'ready')
    """
    return state if cause in (None, Cause.REQUESTED) else f"{state}: {CAUSE_TEXTS[cause]}"


def cause_counts(causes: Mapping[Cause, int]) -> str:
    """Returns the number of instances per cause, in words.

    >>> cause_counts({Cause.PREEMPTED: 2, Cause.LOST: 1})
    '2 preempted, 1 lost'
    """
    return ", ".join(f"{formats.count(number)} {CAUSE_COUNT_TEXTS[cause]}" for cause, number in causes.items())
