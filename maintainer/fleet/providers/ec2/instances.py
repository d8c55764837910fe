"""Translates EC2 instances and their tags into instances of the provider interface."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from maintainer.fleet.providers.base import Handle, Instance, LaunchSpec, State, Tags, fingerprint

KIND = "ec2"

PREFIX = "astraflow:"
"""Prefix of the keys of tags."""

_STATES = {
    "pending": State.PENDING,
    "running": State.RUNNING,
    "shutting-down": State.TERMINATING,
    "stopping": State.TERMINATING,
    "stopped": State.TERMINATING,  # it runs no node and its disk costs money: it must be terminated
    "terminated": State.GONE,
}

_INTERRUPTIONS = ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")
"""Codes of `StateReason` of a spot instance that EC2 took back.

Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html
"""

_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?= (GMT|UTC))")


def tags_for(spec: LaunchSpec, launch_id: str) -> dict[str, str]:
    own = {
        "cluster": spec.tags.cluster,
        "launch-id": launch_id,
        "pool": spec.tags.pool,
        "run": spec.tags.run,
        "expires-at": repr(spec.tags.expires_at),
        "region": spec.region,
        "spec": fingerprint(spec),
    }
    return {"Name": f"astraflow {spec.tags.pool}", **{f"{PREFIX}{key}": value for key, value in own.items()}}


def tags_of(description: Mapping[str, Any]) -> dict[str, str]:
    tags: Iterable[Mapping[str, str]] = description.get("Tags", ())
    return {tag["Key"]: tag["Value"] for tag in tags}


def state_of(description: Mapping[str, Any]) -> State:
    return _STATES[description["State"]["Name"]]


def handle_of(region: str, description: Mapping[str, Any]) -> Handle:
    launch_id = tags_of(description).get(f"{PREFIX}launch-id", "")
    return Handle(provider=KIND, id=f"{region}/{description['InstanceId']}", launch_id=launch_id)


def instance_of(region: str, description: Mapping[str, Any]) -> Instance:
    own = {key.removeprefix(PREFIX): value for key, value in tags_of(description).items() if key.startswith(PREFIX)}
    is_ours = {"cluster", "pool", "run", "expires-at"} <= own.keys()
    reason = description.get("StateReason") or {}
    return Instance(
        handle=handle_of(region, description),
        tags=Tags(cluster=own["cluster"], pool=own["pool"], run=own["run"], expires_at=float(own["expires-at"]))
        if is_ours
        else None,
        state=state_of(description),
        created_at=description["LaunchTime"].timestamp(),
        type=description["InstanceType"],
        region=own.get("region") or region,
        is_spot=description.get("InstanceLifecycle") == "spot",
        notice_at=_preempted_at(description),
        message=str(reason.get("Message", "")),
    )


def _preempted_at(description: Mapping[str, Any]) -> float | None:
    """Returns the time of a spot interruption; the launch time when EC2 does not say when; None without one."""
    if str((description.get("StateReason") or {}).get("Code", "")) not in _INTERRUPTIONS:
        return None
    at = _TIME.search(str(description.get("StateTransitionReason", "")))
    return (datetime.fromisoformat(f"{at[0]}+00:00") if at else description["LaunchTime"]).timestamp()
