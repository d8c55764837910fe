"""What the provider `kubernetes` is told: where its cluster is, and what pods of nodes are made of."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from astraflow.runtime.config import Config

_QUANTITY = re.compile(r"\d+(\.\d+)?([eE]\d+|m|k|[KMGTPE]i?)?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _checked(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"{value!r} is no {what}")
        return value

    return AfterValidator(check)


Quantity = Annotated[str, _checked(_QUANTITY, "quantity as Kubernetes writes them: 4, 500m, 64Gi")]
LabelKey = Annotated[str, _checked(_LABEL_KEY, "label's name")]
LabelValue = Annotated[str, _checked(_LABEL_VALUE, "label's value: at most 63 letters, digits and . _ -")]
DnsName = Annotated[str, _checked(_DNS_NAME, "name of an object: lower case letters, digits, - and .")]
Variable = Annotated[str, _checked(_VARIABLE, "environment variable's name")]


class Toleration(Config):
    """A taint of machines that pods do not mind."""

    key: str = ""
    """Of the taint; empty for all."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """Whether the taint's value counts."""
    value: LabelValue = ""
    """With `Equal`."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Of the taint; empty for all."""


class PodOptions(Config):
    """Of a pool's pods, under `options` of the pool: what is given here comes on top of the type's own."""

    image: str = ""
    """The provider's own when empty."""
    requests: dict[LabelKey, Quantity] = Field(default={})
    """Resources that the pod is promised: `{ cpu = "8", memory = "32Gi" }`."""
    limits: dict[LabelKey, Quantity] = Field(default={})
    """Resources it may not exceed; devices stand here: `{ "nvidia.com/gpu" = "1" }`."""
    node_selector: dict[LabelKey, LabelValue] = Field(default={})
    """Labels that its machine must have: how a node group is chosen."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that it does not mind."""
    queue: LabelValue | None = None
    """Kueue's LocalQueue; the provider's own when absent, none when empty."""


class PodType(PodOptions):
    """A type of node, as `type` of a pool names it."""

    usd_per_hour: float = Field(default=0.0, ge=0)
    """What one costs: Kubernetes does not know."""


class Spot(Config):
    """What makes a pod one that may be taken away."""

    node_selector: dict[LabelKey, LabelValue] = Field(default={})
    """Labels of spot machines, as the cluster's cloud gives them."""
    tolerations: tuple[Toleration, ...] = ()
    """Their taints."""
    discount: float = Field(default=0.6, ge=0, lt=1)
    """By how much of the price they are cheaper."""
    notice_s: float = Field(default=25.0, ge=0)
    """How long before its end a pod is told, as the cloud says."""


class KubernetesOptions(Config):
    """One namespace of one cluster."""

    image: str = Field(min_length=1)
    """Container image with `astraflow` and the engine."""
    command: tuple[str, ...] = Field(default=("astraflow",), min_length=1)
    """What stands before `join ADDRESS ...` in the container."""
    namespace: DnsName = "default"
    """Where the pods are; nothing outside of it is ever looked at."""
    kubeconfig: str = ""
    """Path; when empty the service account of the pod that this runs in, else the usual file."""
    context: str = ""
    """Of the kubeconfig; its current one when empty."""
    types: dict[str, PodType] = Field(default={"node": PodType()}, min_length=1)
    """By a name of your own; the first is the default."""
    regions: dict[str, dict[LabelKey, LabelValue]] = Field(default={})
    """By a name of your own: labels of the machines that stand there."""
    spot: Spot | None = None
    """None where there are no spot machines."""
    queue: LabelValue = ""
    """Kueue's LocalQueue that pods wait in for their quota; none when empty."""
    service_account: str = ""
    """Of the pods, which are given no token of it."""
    image_pull_secrets: tuple[DnsName, ...] = ()
    """Names of secrets in the namespace."""
    priority_class: str = ""
    """Of the pods; the cluster's default when empty."""
    user_id: int | None = Field(default=None, ge=1)
    """Pods run as this user; as the image says when absent."""
    shared_memory: Quantity = "2Gi"
    """Size of /dev/shm, through which weights travel inside a node; it counts as the pod's memory."""
    environment: dict[Variable, str] = Field(default={})
    """Of the node's program. No secrets: whoever may read pods reads it."""
    timeout_s: float = Field(default=15.0, gt=0)
    """A request is given up after so long."""
    page_size: int = Field(default=500, ge=1)
    """Pods that are asked for at once."""
    boot_patience_s: float = Field(default=180.0, ge=0)
    """An image that cannot be pulled, or a container that cannot be made, for so long is a launch that failed."""
    place_patience_s: float = Field(default=900.0, ge=0)
    """So long a pod may wait for a machine, or for Kueue; a cluster that grows by itself needs minutes."""
    place_wait_s: float = Field(default=0.0, ge=0)
    """A launch that finds no machine within so long is taken back as Capacity, or Quota; 0 does not wait for it."""
    kept_s: float = Field(default=3600.0, ge=0)
    """Pods that have ended are kept so long, for their logs."""
    launch_delay_s: float = Field(default=120.0, gt=0)
    """From launch to a node that works, as long as nothing better was measured."""
