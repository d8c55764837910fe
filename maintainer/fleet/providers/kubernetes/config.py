"""Options of the provider `kubernetes`: the cluster, and the pods of nodes."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from astraflow.runtime.config.base import Config

_QUANTITY = re.compile(r"\d+(\.\d+)?([eE]\d+|m|k|[KMGTPE]i?)?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _checked(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"cannot use {value!r}: it is no {what}")
        return value

    return AfterValidator(check)


Quantity = Annotated[str, _checked(_QUANTITY, "quantity as Kubernetes writes them: 4, 500m, 64Gi")]
LabelKey = Annotated[str, _checked(_LABEL_KEY, "label's name")]
LabelValue = Annotated[str, _checked(_LABEL_VALUE, "label's value: at most 63 letters, digits and . _ -")]
DnsName = Annotated[str, _checked(_DNS_NAME, "name of an object: lower case letters, digits, - and .")]
Variable = Annotated[str, _checked(_VARIABLE, "environment variable's name")]


class Toleration(Config):
    """Toleration of a taint."""

    key: str = ""
    """Key of the taint; empty for all."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """`Equal` compares the taint's value; `Exists` ignores it."""
    value: LabelValue = ""
    """Value of the taint, with `Equal`."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint; empty for all."""


class PodOptions(Config):
    """Options of a pool's pods, in the pool's `options`. They extend those of the type."""

    image: str = ""
    """Container image; the provider's default when empty."""
    requests: dict[LabelKey, Quantity] = Field(default={})
    """Resource requests: `{ cpu = "8", memory = "32Gi" }`."""
    limits: dict[LabelKey, Quantity] = Field(default={})
    """Resource limits, including devices: `{ "nvidia.com/gpu" = "1" }`."""
    node_selector: dict[LabelKey, LabelValue] = Field(default={})
    """Labels that the Kubernetes node must have, for example to select a node group."""
    tolerations: tuple[Toleration, ...] = ()
    """Tolerations of the pod."""
    queue: LabelValue | None = None
    """Kueue's LocalQueue; the provider's default when absent, none when empty."""


class PodType(PodOptions):
    """Instance type, selected by a pool's `type`."""

    usd_per_hour: float = Field(default=0.0, ge=0)
    """Price of an instance in US dollars an hour. Kubernetes has no prices."""


class Spot(Config):
    """Placement of preemptible pods."""

    node_selector: dict[LabelKey, LabelValue] = Field(default={})
    """Labels of spot nodes in the cluster's cloud."""
    tolerations: tuple[Toleration, ...] = ()
    """Tolerations of the taints of spot nodes."""
    discount: float = Field(default=0.6, ge=0, lt=1)
    """Discount of spot instances, as a share of the price."""
    notice_s: float = Field(default=25.0, ge=0)
    """Time between notice and preemption, as documented by the cloud. Seconds."""


class KubernetesOptions(Config):
    """Options for one namespace of a cluster."""

    image: str = Field(min_length=1)
    """Container image with `astraflow` and the engine."""
    command: tuple[str, ...] = Field(default=("astraflow",), min_length=1)
    """Command before `join ADDRESS ...` in the container."""
    namespace: DnsName = "default"
    """Namespace of the pods; the provider accesses no other."""
    kubeconfig: str = ""
    """Path of the kubeconfig. When empty: the service account of the own pod, else the default file."""
    context: str = ""
    """Context in the kubeconfig; the current one when empty."""
    types: dict[str, PodType] = Field(default={"node": PodType()}, min_length=1)
    """Instance types by a name of your choice; the first is the default."""
    regions: dict[str, dict[LabelKey, LabelValue]] = Field(default={})
    """Regions by a name of your choice: labels of the Kubernetes nodes there."""
    spot: Spot | None = None
    """Placement of spot pods; None without spot nodes."""
    queue: LabelValue = ""
    """Kueue's LocalQueue in which pods wait for quota; none when empty."""
    service_account: str = ""
    """Service account of the pods. Its token is not mounted."""
    image_pull_secrets: tuple[DnsName, ...] = ()
    """Names of image pull secrets in the namespace."""
    priority_class: str = ""
    """Priority class of the pods; the cluster's default when empty."""
    user_id: int | None = Field(default=None, ge=1)
    """User id of the pods; the image's user when absent."""
    shared_memory: Quantity = "2Gi"
    """Size of /dev/shm, which holds weights inside a node; it counts towards the pod's memory."""
    environment: dict[Variable, str] = Field(default={})
    """Environment of the node's program. Do not put secrets here: they are readable with the pod."""
    timeout_s: float = Field(default=15.0, gt=0)
    """Timeout of a request. Seconds."""
    page_size: int = Field(default=500, ge=1)
    """Number of pods per list page."""
    boot_timeout_s: float = Field(default=180.0, ge=0)
    """Time after which a failed image pull or container creation counts as a failed launch. Seconds."""
    schedule_timeout_s: float = Field(default=900.0, ge=0)
    """Maximum time a pod waits for scheduling or Kueue; an autoscaled cluster needs minutes. Seconds."""
    schedule_wait_s: float = Field(default=0.0, ge=0)
    """Time after which an unscheduled launch fails with Capacity or Quota. Seconds; 0: launches do not wait."""
    retention_s: float = Field(default=3600.0, ge=0)
    """Time for which finished pods are kept for their logs. Seconds."""
    launch_delay_s: float = Field(default=120.0, gt=0)
    """Estimated time from launch to a ready node, until it is measured. Seconds."""
