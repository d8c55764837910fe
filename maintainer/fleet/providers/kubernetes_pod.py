"""What a pod that was read says of its node: where it stands, and why. Pure."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from maintainer.fleet.providers.base import Handle, Instance, State, Tags
from maintainer.fleet.providers.kubernetes_config import KubernetesOptions
from maintainer.fleet.providers.kubernetes_manifest import KIND, LAUNCH, ORDER

_NEVER_BOOTS = ("InvalidImageName", "ErrImageNeverPull")
_HARDLY_BOOTS = (
    "ImagePullBackOff",
    "ErrImagePull",
    "ImageInspectError",
    "RegistryUnavailable",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
)
"""Reasons why a container waits. The second may pass."""


def order_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for; empty when the annotation is gone or somebody has spoilt it."""
    try:
        found = json.loads((pod["metadata"].get("annotations") or {}).get(ORDER, ""))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def read_pod(options: KubernetesOptions, pod: Mapping[str, Any], *, now: float) -> Instance:
    """A pod as an instance."""
    metadata, order = pod["metadata"], order_of(pod)
    state, message = state_of(pod, options, now=now)
    is_taken = _condition(pod, "DisruptionTarget").get("status") == "True"
    ends_at = metadata.get("deletionTimestamp")
    return Instance(
        handle=Handle(provider=KIND, id=metadata["name"], launch_id=(metadata.get("labels") or {}).get(LAUNCH, "")),
        tags=_tags(order.get("tags")),
        state=state,
        created_at=unix_s(metadata.get("creationTimestamp")),
        type=str(order.get("type", "")),
        region=str(order.get("region", "")),
        is_spot=bool(order.get("is_spot", False)),
        notice_at=unix_s(ends_at) if is_taken and ends_at else None,
        message=message,
    )


def state_of(pod: Mapping[str, Any], options: KubernetesOptions, *, now: float) -> tuple[State, str]:
    """Where a pod stands, and why."""
    status: Mapping[str, Any] = pod.get("status") or {}
    phase = status.get("phase", "Pending")
    if phase in ("Succeeded", "Failed"):
        return State.GONE, _ending(pod)
    taken = _condition(pod, "DisruptionTarget")
    if taken.get("status") == "True":
        return State.GOING, f"is taken away: {taken.get('message') or taken.get('reason')}"
    if pod["metadata"].get("deletionTimestamp"):
        return State.GOING, "was deleted"
    scheduled = _condition(pod, "PodScheduled")
    if phase == "Pending" and scheduled.get("status") == "False":
        return _without_place(pod, scheduled, options, now=now)
    for reason, message in _waiting(pod):
        since = unix_s(scheduled.get("lastTransitionTime")) or unix_s(pod["metadata"].get("creationTimestamp"))
        is_over = reason in _HARDLY_BOOTS and now - since >= options.boot_patience_s
        if reason in _NEVER_BOOTS or is_over:
            return State.STUCK, f"does not boot: {reason}: {message}"
        return State.PENDING, f"{reason}: {message}" if message else reason
    return (State.RUNNING, "") if phase == "Running" else (State.PENDING, "")


def want_of_place(pod: Mapping[str, Any]) -> str:
    """What a pod without a machine waits for: `Capacity`, or Kueue's `Quota`; empty for one that has its place."""
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "True" or (pod.get("spec") or {}).get("nodeName"):
        return ""
    return "Quota" if scheduled.get("reason") == "SchedulingGated" else "Capacity"


def is_finished(pod: Mapping[str, Any]) -> bool:
    """Whether its containers have ended for good."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def finished_at(pod: Mapping[str, Any]) -> float:
    """Unix seconds; when it was made, where its end is not told."""
    ended = [(one.get("state") or {}).get("terminated") or {} for one in _containers(pod)]
    times = [unix_s(one.get("finishedAt")) for one in ended]
    return max([*times, unix_s(pod["metadata"].get("creationTimestamp"))])


def unix_s(stamp: str | None) -> float:
    """Of a time as Kubernetes writes them; 0 for none.

    >>> unix_s("1970-01-02T00:00:00Z")
    86400.0
    """
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def _without_place(
    pod: Mapping[str, Any], scheduled: Mapping[str, Any], options: KubernetesOptions, *, now: float
) -> tuple[State, str]:
    why = scheduled.get("message") or scheduled.get("reason") or "not scheduled"
    message = f"{want_of_place(pod)}: {why}"
    waited_s = now - unix_s(pod["metadata"].get("creationTimestamp"))
    if waited_s >= options.place_patience_s:
        return State.STUCK, f"found no place within {options.place_patience_s:.0f} s: {message}"
    return State.PENDING, message


def _ending(pod: Mapping[str, Any]) -> str:
    status = pod["status"]
    if status.get("reason"):
        return f"{status['reason']}: {status.get('message', '')}".rstrip(": ")
    for container in _containers(pod):
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            return f"the node ended with code {ended.get('exitCode')} ({ended.get('reason', 'no reason')})"
    return f"the pod is {status['phase']}"


def _waiting(pod: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = [(one.get("state") or {}).get("waiting") or {} for one in _containers(pod)]
    return [(one["reason"], one.get("message", "")) for one in found if one.get("reason")]


def _containers(pod: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _condition(pod: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == kind), {})


def _tags(said: object) -> Tags | None:
    if not isinstance(said, dict) or set(said) != set(Tags.__slots__):
        return None
    return Tags(**said)
