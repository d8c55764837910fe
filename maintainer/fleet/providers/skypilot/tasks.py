"""Options of the provider `skypilot`, and its tasks: creation and parsing. Pure."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from pydantic import Field

from astraflow.runtime.config.base import Config
from maintainer.fleet.providers.base import LaunchSpec, join_arguments
from maintainer.fleet.providers.launches import (
    check_launch_id,
    check_region,
    chosen_type,
    launch_order,
    life_s,
    parse_order,
    pool_options,
    type_name,
)


class ClusterOptions(Config):
    """SkyPilot's resource options; a pool's `options` override those of the type."""

    infra: str = ""
    """Infrastructure: `aws`, `aws/us-east-1`, `k8s/context`; the cheapest when empty."""
    accelerators: str = ""
    """Accelerators: `H100:8`."""
    instance_type: str = ""
    """Instance type of the cloud."""
    cpus: str = ""
    """Number of CPUs: `8+`."""
    memory: str = ""
    """Memory in gigabytes: `64+`."""
    disk_size: int | None = Field(default=None, ge=1)
    """Disk size in gigabytes."""
    image_id: str = ""
    """Image: `docker:registry.example/astraflow-node`, or a cloud's image."""
    setup: str = ""
    """Script that installs the node's program, if the image does not contain it."""


class ClusterType(ClusterOptions):
    """Instance type, selected by a pool's `type`."""

    usd_per_hour: float = Field(default=0.0, ge=0)
    """Price of an instance in US dollars an hour."""


class SkyPilotOptions(Config):
    """Options for one user of an API server."""

    endpoint: str = Field(default="http://127.0.0.1:46580", pattern=r"^https?://[^@]+$")
    """URL of the API server, without credentials."""
    token_variable: str = "SKYPILOT_SERVICE_ACCOUNT_TOKEN"  # noqa: S105 (the variable's name, not a secret)
    """Environment variable with the service account's token; unauthenticated when it is not set."""
    token_file: str = ""
    """File with the service account's token, which is read at each request, so that a renewed token needs no restart;
    the variable when empty."""
    user: str = Field(default="a57f10e0", pattern=r"^[0-9a-f]{8}$")
    """SkyPilot's hash of the clusters' user, used without a token."""
    program: tuple[str, ...] = Field(default=("astraflow",), min_length=1)
    """Command before `join ADDRESS ...` on the instances."""
    types: dict[str, ClusterType] = Field(default={"node": ClusterType()}, min_length=1)
    """Instance types by a name of your choice; the first is the default."""
    regions: dict[str, str] = Field(default={})
    """Regions by a name of your choice: SkyPilot's `infra` value."""
    spot_discount: float = Field(default=0.6, ge=0, lt=1)
    """Discount of spot instances, as a share of the price."""
    idle_minutes: int = Field(default=5, ge=1)
    """Idle time after which SkyPilot terminates an instance whose node has ended."""
    answer_wait_s: float = Field(default=10.0, ge=0)
    """Time for which a launch waits for a refusal by SkyPilot; later refusals show in the list. Seconds."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Timeout of a request; calls of clouds can be slow. Seconds."""
    listing_lag_s: float = Field(default=60.0, ge=0)
    """Maximum time until a launch whose answer was lost is listed. Seconds."""
    launch_delay_s: float = Field(default=300.0, gt=0)
    """Estimated time from launch to a ready node, until it is measured. Seconds."""


PREFIX = "astraflow-"
ORDER, TOKEN = "ASTRAFLOW_ORDER", "ASTRAFLOW_TOKEN"


def cluster_type(options: SkyPilotOptions, spec: LaunchSpec) -> ClusterType:
    """Returns the spec's type, overridden by the pool's options. Raises: InvalidError."""
    kind = chosen_type(options.types, spec)
    check_region(options.regions, spec)
    own = pool_options(ClusterOptions, spec)
    return kind.model_copy(update=own.model_dump(exclude_unset=True))


def task_of(options: SkyPilotOptions, spec: LaunchSpec, launch_id: str, *, now: float) -> dict[str, Any]:
    """Returns the task of a launch. Raises: InvalidError."""
    kind, left_s = cluster_type(options, spec), life_s(spec, launch_id, now=now)
    resources = {
        "infra": options.regions.get(spec.region, kind.infra),
        **kind.model_dump(include={"accelerators", "instance_type", "cpus", "memory", "disk_size", "image_id"}),
    }
    order = launch_order(spec, launch_id, kind=type_name(options.types, spec))
    labels = {
        "astraflow-cluster": spec.tags.cluster,
        "astraflow-launch": launch_id,
        "astraflow-pool": spec.tags.pool,
    }
    return {
        "name": cluster_name(launch_id),
        "resources": {
            **{name: value for name, value in resources.items() if value},
            "use_spot": spec.is_spot,
            "labels": {key: label(value) for key, value in labels.items()},
            "autostop": {"idle_minutes": options.idle_minutes, "down": True},
        },
        "envs": {ORDER: json.dumps(order)},
        "secrets": {TOKEN: spec.token},
        **({"setup": kind.setup} if kind.setup else {}),
        "run": run_script([*options.program, *join_arguments(spec, launch_id)], left_s=left_s),
    }


def cluster_name(launch_id: str) -> str:
    """Returns a cluster name that is valid in SkyPilot and all its clouds. Raises: InvalidError."""
    check_launch_id(launch_id)
    return PREFIX + launch_id.lower()


def label(text: str) -> str:
    """Returns a label value that is valid in every cloud; the order contains the full text.

    >>> label("EU:west/1")
    'eu-west-1'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:60].strip("-")


def run_script(argv: Sequence[str], *, left_s: float) -> str:
    """Returns the script of a node: one node at a time, until the instance expires."""
    last = min(365 * 86400, int(left_s))
    return f'exec 9>"$HOME/.astraflow-node.lock"\nflock -n 9 || exit 0\nexec timeout -k 60 {last} {shlex.join(argv)}\n'


def order_of(task: str) -> Mapping[str, Any]:
    """Returns the launch order in a task's YAML; empty for a foreign task."""
    try:
        task_fields = yaml.safe_load(task)
        return parse_order(str(task_fields["envs"][ORDER]))
    except (yaml.YAMLError, KeyError, TypeError):
        return {}
