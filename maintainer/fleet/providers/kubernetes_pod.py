"""A node as a pod: the manifest that asks for it, and what a pod that was read says of it. Pure."""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config import nearest
from maintainer.fleet.providers.base import (
    Handle,
    Instance,
    Invalid,
    LaunchSpec,
    State,
    Tags,
    fingerprint,
    join_arguments,
)
from maintainer.fleet.providers.kubernetes_config import KubernetesOptions, PodOptions, PodType

KIND = "kubernetes"

MANAGED = {"app.kubernetes.io/managed-by": "astraflow-fleet"}
CLUSTER, LAUNCH, POOL, RUN = "astraflow/cluster", "astraflow/launch", "astraflow/pool", "astraflow/run"
"""Labels, which selectors find pods by."""
ORDER = "astraflow/order"
"""Annotation: what was asked for, in full; labels are too short for some names."""
QUEUE = "kueue.x-k8s.io/queue-name"
TOKEN = "token"  # noqa: S105 (a key of the secret, not a secret)

_LAUNCH_ID = re.compile(r"[0-9A-Za-z]([0-9A-Za-z-]{0,48}[0-9A-Za-z])?")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LONGEST_S = 2**31 - 1
_GRACE_MARGIN_S = 15

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


def pod_name(launch_id: str) -> str:
    """One name for a launch, so that there is one pod. Raises: Invalid."""
    if not _LAUNCH_ID.fullmatch(launch_id):
        raise Invalid(f"{launch_id[:80]!r} is no launch id: use 1 to 50 letters, digits and -")
    return f"astraflow-{launch_id.lower()}"


def label(text: str) -> str:
    """The text where it may be a label's value; else what is left of it, and its digest.

    >>> label("eu:west/1")
    'eu-west-1-b10a3a5a74'
    """
    if _LABEL.fullmatch(text):
        return text
    digest = hashlib.blake2b(text.encode(), digest_size=5).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', text)[:50].strip('-')}-{digest}".lstrip("-")


def pod_type(options: KubernetesOptions, spec: LaunchSpec) -> PodType:
    """What the spec's type, region and spot mean here. Raises: Invalid for what this cluster has not."""
    kind = spec.type or next(iter(options.types))
    if kind not in options.types:
        raise Invalid(f"no type of pod is called {kind!r}; {nearest(kind, [*options.types])}")
    if spec.region and spec.region not in options.regions:
        known = nearest(spec.region, [*options.regions]) if options.regions else "none is configured"
        raise Invalid(f"no region is called {spec.region!r}; {known}")
    if spec.is_spot and options.spot is None:
        raise Invalid("spot machines are not configured here: give [providers.NAME.spot] the labels that they have")
    return options.types[kind]


def pool_options(spec: LaunchSpec) -> PodOptions:
    """Of the pool. Raises: Invalid."""
    try:
        return PodOptions.parse(spec.options, where="options of the pool")
    except InvalidInput as problem:
        raise Invalid(str(problem)) from None


def pod_manifest(options: KubernetesOptions, spec: LaunchSpec, launch_id: str, *, now: float) -> dict[str, Any]:
    """The pod of a launch, without its token, which is in the secret of the same name. Raises: Invalid."""
    name, kind, own = pod_name(launch_id), pod_type(options, spec), pool_options(spec)
    left_s = spec.tags.expires_at - now
    if left_s < 1:
        raise Invalid(f"launch {launch_id} would have expired {-left_s:.0f} s ago")
    queue = next((queue for queue in (own.queue, kind.queue) if queue is not None), options.queue)
    tags = {
        CLUSTER: label(spec.tags.cluster),
        LAUNCH: launch_id,
        POOL: label(spec.tags.pool),
        RUN: label(spec.tags.run),
    }
    order = {
        "fingerprint": fingerprint(spec),
        "launch_id": launch_id,
        "tags": asdict(spec.tags),
        "type": spec.type or next(iter(options.types)),
        "region": spec.region,
        "is_spot": spec.is_spot,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": options.namespace,
            "labels": {**MANAGED, **tags, **({QUEUE: queue} if queue else {})},
            "annotations": {ORDER: json.dumps(order)},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": min(_LONGEST_S, int(left_s)),
            "terminationGracePeriodSeconds": math.ceil(spec.node.drain_s) + _GRACE_MARGIN_S,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": _pod_security(options),
            "containers": [_container(options, spec, launch_id, own=own, kind=kind)],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": options.shared_memory}}],
            **_placement(options, spec, own=own, kind=kind),
        },
    }


def secret_manifest(options: KubernetesOptions, pod: Mapping[str, Any], token: str) -> dict[str, Any]:
    """The token of a pod, which goes when its pod goes."""
    metadata = pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "immutable": True,
        "metadata": {
            "name": metadata["name"],
            "namespace": options.namespace,
            "labels": {
                key: metadata["labels"][key] for key in (*MANAGED, CLUSTER, LAUNCH) if key in metadata["labels"]
            },
            "ownerReferences": [owner],
        },
        "stringData": {TOKEN: token},
    }


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


def _pod_security(options: KubernetesOptions) -> dict[str, Any]:
    user = {} if options.user_id is None else {"runAsNonRoot": True, "runAsUser": options.user_id}
    return {"seccompProfile": {"type": "RuntimeDefault"}, **user}


def _container(
    options: KubernetesOptions, spec: LaunchSpec, launch_id: str, *, own: PodOptions, kind: PodType
) -> dict[str, Any]:
    secret = {"secretKeyRef": {"name": pod_name(launch_id), "key": TOKEN}}
    plain = [{"name": name, "value": value} for name, value in sorted(options.environment.items())]
    resources = {"requests": {**kind.requests, **own.requests}, "limits": {**kind.limits, **own.limits}}
    return {
        "name": "node",
        "image": own.image or kind.image or options.image,
        "command": list(options.command),
        "args": list(join_arguments(spec, launch_id)),
        "env": [*plain, {"name": "ASTRAFLOW_TOKEN", "valueFrom": secret}],
        "resources": {name: values for name, values in resources.items() if values},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 (in the container)
    }


def _placement(options: KubernetesOptions, spec: LaunchSpec, *, own: PodOptions, kind: PodType) -> dict[str, Any]:
    spot = options.spot if spec.is_spot else None
    selector = {
        **options.regions.get(spec.region, {}),
        **(spot.node_selector if spot else {}),
        **kind.node_selector,
        **own.node_selector,
    }
    tolerations = [*(spot.tolerations if spot else ()), *kind.tolerations, *own.tolerations]
    said = {
        "nodeSelector": selector,
        "tolerations": [{key: value for key, value in dict(one).items() if value} for one in tolerations],
        "serviceAccountName": options.service_account,
        "imagePullSecrets": [{"name": name} for name in options.image_pull_secrets],
        "priorityClassName": options.priority_class,
    }
    return {name: value for name, value in said.items() if value}


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
