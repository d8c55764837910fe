"""What follows for a launch from something that was seen of it. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from astraflow.contract.causes import Cause
from astraflow.contract.fleet import Instance, InstanceState
from maintainer.fleet.departures import cause_after
from maintainer.fleet.lifecycle import Sight, after
from maintainer.fleet.records import Record


def stepped(
    known: Record, sight: Sight, *, now: float, cause: Cause | None, message: str | None, changes: Mapping[str, Any]
) -> Record:
    """The launch then. cause: what makes it go, where more is known than the sight says. message: None to keep it.

    changes: other fields of the record; handle: of its instance.
    """
    state = after(known.instance.state, sight)
    of_instance: dict[str, Any] = {
        "state": state,
        "cause": cause_after(known.instance, sight, cause),
        **_times(known.instance, state, sight, now),
    }
    if message is not None:
        of_instance["message"] = message
    if "handle" in changes:
        of_instance["handle"] = changes["handle"]
    of_record = {name: value for name, value in changes.items() if name != "handle"}
    if (state is InstanceState.SUSPECT) != (known.suspect_at is not None):
        of_record["suspect_at"] = now if state is InstanceState.SUSPECT else None
    if state is not known.instance.state:
        of_record = {"tries": 0, "next_try_at": 0.0, **of_record}
    return replace(known, instance=replace(known.instance, **of_instance), **of_record)


def _times(instance: Instance, state: InstanceState, sight: Sight, now: float) -> dict[str, float]:
    """Each is that of the first time."""
    reached = {
        "launched_at": sight in (Sight.TAKEN, Sight.PENDING, Sight.RUNNING),
        "ready_at": state is InstanceState.READY,
        "draining_at": state is InstanceState.DRAINING,
        "retiring_at": state is InstanceState.RETIRING,
        "gone_at": state is InstanceState.GONE,
    }
    return {name: now for name, is_reached in reached.items() if is_reached and getattr(instance, name) is None}
