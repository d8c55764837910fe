"""SkyPilot tasks of nodes: creation and parsing. Pure."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

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
from maintainer.fleet.providers.skypilot.config import ClusterOptions, ClusterType, SkyPilotOptions

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
