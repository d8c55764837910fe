"""Causes of terminations: the cause that each event implies, and counts by cause."""

from collections import Counter
from collections.abc import Iterable, Mapping

from astraflow.contract.fleet.instances import Cause, Instance, InstanceState
from maintainer.fleet.ledger.lifecycle import COUNTED_STATES, TERMINATING_STATES, InstanceEvent, next_state
from maintainer.fleet.ledger.records import LaunchRecord

LOSS_WINDOW_S = 3600.0
"""Window in which losses are counted. Seconds."""

_CAUSES = {
    InstanceEvent.DRAIN: Cause.REQUESTED,
    InstanceEvent.STOP: Cause.REQUESTED,
    InstanceEvent.RETIRE: Cause.FAILED,
}
"""Events that imply a cause. An instance retired without a drain has failed before it was ready."""


def termination_cause(instance: Instance, event: InstanceEvent, reported: Cause | None = None) -> Cause | None:
    """Returns the cause of an instance's termination after an event; None while it lives. The first cause counts.

    reported: cause that the observer knows; without it, an instance that ends before it was ready has failed. Only
    LOST is replaced, by PREEMPTED, because a node leaves after its notice, before the provider is polled. Instances
    that were terminating before causes were recorded have none.
    """
    unrequested = Cause.PREEMPTED if event is InstanceEvent.PREEMPTING else Cause.LOST
    cause = reported or _CAUSES.get(event, Cause.FAILED if instance.ready_at is None else unrequested)
    if instance.cause is Cause.LOST and cause is Cause.PREEMPTED:
        return cause
    if event is InstanceEvent.ADOPTED and instance.state is InstanceState.GONE:
        return None
    begins = instance.state in COUNTED_STATES and next_state(instance.state, event) not in COUNTED_STATES
    return cause if begins else instance.cause


def terminating(records: Iterable[LaunchRecord]) -> Mapping[Cause, int]:
    """Returns the number of draining or retiring instances by cause."""
    return _counted(record.instance for record in records if record.instance.state in TERMINATING_STATES)


def losses(records: Iterable[LaunchRecord], *, now: float) -> Mapping[Cause, int]:
    """Returns the number of working nodes lost without a request within the window, by cause."""
    instances = (instance.instance for instance in records if instance.instance.was_lost)
    return _counted(instance for instance in instances if now - (instance.left_at or 0.0) <= LOSS_WINDOW_S)


def _counted(instances: Iterable[Instance]) -> Mapping[Cause, int]:
    counts = Counter(instance.cause for instance in instances if instance.cause is not None)
    return {cause: counts[cause] for cause in Cause if cause in counts}
