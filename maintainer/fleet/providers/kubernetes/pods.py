"""Translates pods into instances: state and reason. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from maintainer.fleet.providers.base import CapacityError, Handle, Instance, ProviderError, QuotaError, State
from maintainer.fleet.providers.kubernetes.config import KubernetesOptions
from maintainer.fleet.providers.kubernetes.manifest import KIND, LAUNCH, ORDER
from maintainer.fleet.providers.launches import ordered_instance, parse_order

_PERMANENT_BOOT_ERRORS = ("InvalidImageName", "ErrImageNeverPull")
_RETRIED_BOOT_ERRORS = (
    "ImagePullBackOff",
    "ErrImagePull",
    "ImageInspectError",
    "RegistryUnavailable",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
)
"""Reasons of waiting containers: permanent reasons, and reasons after which Kubernetes retries."""

_PREEMPTIONS = ("Evicted", "NodeShutdown", "Preempting", "Shutdown", "Terminated")
"""Reasons of pods that failed because their Kubernetes node evicted them or was shut down.

Source: https://kubernetes.io/docs/concepts/workloads/pods/disruptions/, pkg/kubelet/eviction and nodeshutdown
"""


def order_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the launch order in the annotation; empty when it is missing or invalid."""
    return parse_order((pod["metadata"].get("annotations") or {}).get(ORDER, ""))


def read_pod(options: KubernetesOptions, pod: Mapping[str, Any], *, now: float) -> Instance:
    """Returns the instance of a pod."""
    metadata, order = pod["metadata"], order_of(pod)
    state, message = state_of(pod, options, now=now)
    disruption = _condition(pod, "DisruptionTarget")
    is_preempted = disruption.get("status") == "True" or (pod.get("status") or {}).get("reason") in _PREEMPTIONS
    ends_at = metadata.get("deletionTimestamp") or disruption.get("lastTransitionTime")
    return ordered_instance(
        order,
        handle=Handle(provider=KIND, id=metadata["name"], launch_id=(metadata.get("labels") or {}).get(LAUNCH, "")),
        state=state,
        created_at=unix_s(metadata.get("creationTimestamp")),
        notice_at=unix_s(ends_at or metadata.get("creationTimestamp")) if is_preempted else None,
        message=message,
    )


def state_of(pod: Mapping[str, Any], options: KubernetesOptions, *, now: float) -> tuple[State, str]:
    """Returns a pod's state, and the reason."""
    status: Mapping[str, Any] = pod.get("status") or {}
    phase = status.get("phase", "Pending")
    if phase in ("Succeeded", "Failed"):
        return State.GONE, _ending(pod)
    disruption = _condition(pod, "DisruptionTarget")
    if disruption.get("status") == "True":
        return State.TERMINATING, f"preempted: {disruption.get('message') or disruption.get('reason')}"
    if pod["metadata"].get("deletionTimestamp"):
        return State.TERMINATING, "deleted"
    scheduled = _condition(pod, "PodScheduled")
    if phase == "Pending" and scheduled.get("status") == "False":
        return _unscheduled(pod, scheduled, options, now=now)
    for reason, message in _waiting(pod):
        since = unix_s(scheduled.get("lastTransitionTime")) or unix_s(pod["metadata"].get("creationTimestamp"))
        is_over = reason in _RETRIED_BOOT_ERRORS and now - since >= options.boot_timeout_s
        if reason in _PERMANENT_BOOT_ERRORS or is_over:
            return State.STUCK, f"boot failed: {reason}: {message}"
        return State.PENDING, f"{reason}: {message}" if message else reason
    return (State.RUNNING, "") if phase == "Running" else (State.PENDING, "")


def scheduling_obstacle(pod: Mapping[str, Any]) -> type[ProviderError] | None:
    """Returns what an unscheduled pod waits for: capacity, or Kueue's quota; None for a scheduled pod."""
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "True" or (pod.get("spec") or {}).get("nodeName"):
        return None
    return QuotaError if scheduled.get("reason") == "SchedulingGated" else CapacityError


def is_finished(pod: Mapping[str, Any]) -> bool:
    """Returns whether the pod's containers have ended for good."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def finished_at(pod: Mapping[str, Any]) -> float:
    """Returns the pod's end in Unix seconds; its creation when the end is unknown."""
    ended = [(container.get("state") or {}).get("terminated") or {} for container in _containers(pod)]
    times = [unix_s(container.get("finishedAt")) for container in ended]
    return max([*times, unix_s(pod["metadata"].get("creationTimestamp"))])


def unix_s(stamp: str | None) -> float:
    """Returns Unix seconds of a Kubernetes timestamp; 0 for none.

    >>> unix_s("1970-01-02T00:00:00Z")
    86400.0
    """
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def _unscheduled(
    pod: Mapping[str, Any], scheduled: Mapping[str, Any], options: KubernetesOptions, *, now: float
) -> tuple[State, str]:
    why = scheduled.get("message") or scheduled.get("reason") or "not scheduled"
    obstacle = scheduling_obstacle(pod) or CapacityError
    message = f"{obstacle.__name__}: {why}"
    waited_s = now - unix_s(pod["metadata"].get("creationTimestamp"))
    if waited_s >= options.schedule_timeout_s:
        return State.STUCK, f"not scheduled within {options.schedule_timeout_s:.0f} s: {message}"
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
    waiting = [(container.get("state") or {}).get("waiting") or {} for container in _containers(pod)]
    return [(state["reason"], state.get("message", "")) for state in waiting if state.get("reason")]


def _containers(pod: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _condition(pod: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == kind), {})
