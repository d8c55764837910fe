"""Effects of events on launch records. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from astraflow.contract.fleet.instances import Cause, Instance, InstanceState
from maintainer.fleet.ledger.lifecycle import InstanceEvent, next_state
from maintainer.fleet.ledger.records import LaunchRecord
from maintainer.fleet.ledger.termination_causes import termination_cause

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
