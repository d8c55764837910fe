"""Manifests of a node's pod and secret. Pure."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from maintainer.fleet.providers.base import InvalidError, LaunchSpec, join_arguments
from maintainer.fleet.providers.kubernetes.config import KubernetesOptions, PodOptions, PodType
from maintainer.fleet.providers.launches import (
    check_launch_id,
    check_region,
    chosen_type,
    launch_order,
    life_s,
    pool_options,
    type_name,
)

KIND = "kubernetes"

MANAGED = {"app.kubernetes.io/managed-by": "astraflow-fleet"}
CLUSTER, LAUNCH, POOL, RUN = "astraflow/cluster", "astraflow/launch", "astraflow/pool", "astraflow/run"
"""Labels for selectors."""
ORDER = "astraflow/order"
"""Annotation with the complete launch order, because labels are too short for some names."""
QUEUE = "kueue.x-k8s.io/queue-name"
TOKEN = "token"  # noqa: S105 (a key of the secret, not a secret)

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LONGEST_S = 2**31 - 1
_GRACE_MARGIN_S = 15


def pod_name(launch_id: str) -> str:
    """Returns the pod's name, unique per launch. Raises: InvalidError."""
    check_launch_id(launch_id)
    return f"astraflow-{launch_id.lower()}"


def label(text: str) -> str:
    """Returns the text if it is a valid label value; else its valid part with a digest.

    >>> label("eu:west/1")
    'eu-west-1-b10a3a5a74'
    """
    if _LABEL.fullmatch(text):
        return text
    digest = hashlib.blake2b(text.encode(), digest_size=5).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', text)[:50].strip('-')}-{digest}".lstrip("-")


def pod_type(options: KubernetesOptions, spec: LaunchSpec) -> PodType:
    """Returns the spec's type. Raises: InvalidError for an unknown type or region, or spot without configuration."""
    kind = chosen_type(options.types, spec)
    check_region(options.regions, spec)
    if spec.is_spot and options.spot is None:
        raise InvalidError(
            "cannot launch: spot nodes are not configured; set their labels in [providers.NAME.spot]",
            code="provider.spot_unsupported",
        )
    return kind


def pod_manifest(options: KubernetesOptions, spec: LaunchSpec, launch_id: str, *, now: float) -> dict[str, Any]:
    """Returns a launch's pod. The token is in the secret of the same name. Raises: InvalidError."""
    name, kind, own = pod_name(launch_id), pod_type(options, spec), pool_options(PodOptions, spec)
    left_s = life_s(spec, launch_id, now=now)
    queue = next((queue for queue in (own.queue, kind.queue) if queue is not None), options.queue)
    tags = {
        CLUSTER: label(spec.tags.cluster),
        LAUNCH: launch_id,
        POOL: label(spec.tags.pool),
        RUN: label(spec.tags.run),
    }
    order = launch_order(spec, launch_id, kind=type_name(options.types, spec))
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
    """Returns the secret with a pod's token, owned by the pod."""
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


def _pod_security(options: KubernetesOptions) -> dict[str, Any]:
    user = {} if options.user_id is None else {"runAsNonRoot": True, "runAsUser": options.user_id}
    return {"seccompProfile": {"type": "RuntimeDefault"}, **user}


def _container(
    options: KubernetesOptions, spec: LaunchSpec, launch_id: str, *, own: PodOptions, kind: PodType
) -> dict[str, Any]:
    secret = {"secretKeyRef": {"name": pod_name(launch_id), "key": TOKEN}}
    environment_variables = [{"name": name, "value": value} for name, value in sorted(options.environment.items())]
    resources = {"requests": {**kind.requests, **own.requests}, "limits": {**kind.limits, **own.limits}}
    return {
        "name": "node",
        "image": own.image or kind.image or options.image,
        "command": list(options.command),
        "args": list(join_arguments(spec, launch_id)),
        "env": [*environment_variables, {"name": "ASTRAFLOW_TOKEN", "valueFrom": secret}],
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
    fields = {
        "nodeSelector": selector,
        "tolerations": [{key: value for key, value in dict(toleration).items() if value} for toleration in tolerations],
        "serviceAccountName": options.service_account,
        "imagePullSecrets": [{"name": name} for name in options.image_pull_secrets],
        "priorityClassName": options.priority_class,
    }
    return {name: value for name, value in fields.items() if value}
