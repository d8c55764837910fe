"""Transitions of launches: causes of terminations, and the record after an event. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

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


_INSTANCE_CHANGES = ("handle", "draining_at")
_ENDING_TIMES = ("draining_at", "retiring_at", "gone_at")


def apply_event(
    known: LaunchRecord,
    event: InstanceEvent,
    *,
    now: float,
    cause: Cause | None,
    message: str | None,
    changes: Mapping[str, Any],
) -> LaunchRecord:
    """Returns the launch after an event. cause: known cause of a termination. message: None to keep the current one.

    changes: other fields of the record; `handle` and `draining_at` are fields of its instance.
    """
    state = next_state(known.instance.state, event)
    instance_fields: dict[str, Any] = {
        "state": state,
        "cause": termination_cause(known.instance, event, cause),
        **_times(known.instance, state, event, now),
    }
    if message is not None:
        instance_fields["message"] = message
    instance_fields |= {name: changes[name] for name in _INSTANCE_CHANGES if name in changes}
    record_fields = {name: value for name, value in changes.items() if name not in _INSTANCE_CHANGES}
    if (state is InstanceState.SUSPECT) != (known.suspect_at is not None):
        record_fields["suspect_at"] = now if state is InstanceState.SUSPECT else None
    if state is not known.instance.state:
        record_fields = {"tries": 0, "next_try_at": 0.0, **record_fields}
    return replace(known, instance=replace(known.instance, **instance_fields), **record_fields)


def _times(instance: Instance, state: InstanceState, event: InstanceEvent, now: float) -> dict[str, float | None]:
    """Returns the times to set; each time is set once, and those of an end are removed when it did not end."""
    if event is InstanceEvent.ADOPTED and instance.state is InstanceState.GONE:
        return dict.fromkeys(_ENDING_TIMES)
    reached = {
        "launched_at": event in (InstanceEvent.ACCEPTED, InstanceEvent.PENDING, InstanceEvent.RUNNING),
        "ready_at": state is InstanceState.READY,
        "draining_at": state is InstanceState.DRAINING,
        "retiring_at": state is InstanceState.RETIRING,
        "gone_at": state is InstanceState.GONE,
    }
    return {name: now for name, is_reached in reached.items() if is_reached and getattr(instance, name) is None}
