"""Effects of events on launch records. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from astraflow.contract.fleet.instances import Cause, Instance, InstanceState
from maintainer.fleet.ledger.lifecycle import InstanceEvent, next_state
from maintainer.fleet.ledger.records import LaunchRecord
from maintainer.fleet.ledger.termination_causes import termination_cause


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

    changes: other fields of the record; `handle` is a field of its instance.
    """
    state = next_state(known.instance.state, event)
    instance_fields: dict[str, Any] = {
        "state": state,
        "cause": termination_cause(known.instance, event, cause),
        **_times(known.instance, state, event, now),
    }
    if message is not None:
        instance_fields["message"] = message
    if "handle" in changes:
        instance_fields["handle"] = changes["handle"]
    record_fields = {name: value for name, value in changes.items() if name != "handle"}
    if (state is InstanceState.SUSPECT) != (known.suspect_at is not None):
        record_fields["suspect_at"] = now if state is InstanceState.SUSPECT else None
    if state is not known.instance.state:
        record_fields = {"tries": 0, "next_try_at": 0.0, **record_fields}
    return replace(known, instance=replace(known.instance, **instance_fields), **record_fields)


def _times(instance: Instance, state: InstanceState, event: InstanceEvent, now: float) -> dict[str, float]:
    """Returns the times to set; each time is set once."""
    reached = {
        "launched_at": event in (InstanceEvent.ACCEPTED, InstanceEvent.PENDING, InstanceEvent.RUNNING),
        "ready_at": state is InstanceState.READY,
        "draining_at": state is InstanceState.DRAINING,
        "retiring_at": state is InstanceState.RETIRING,
        "gone_at": state is InstanceState.GONE,
    }
    return {name: now for name, is_reached in reached.items() if is_reached and getattr(instance, name) is None}
