"""An EC2 instance and its tags, as the port has them. All that is known of one is there."""

from collections.abc import Iterable, Mapping
from typing import Any

from maintainer.fleet.providers.base import Handle, Instance, LaunchSpec, State, Tags, fingerprint

KIND = "ec2"

PREFIX = "astraflow:"
"""Of the tags' keys."""

_STATES = {
    "pending": State.PENDING,
    "running": State.RUNNING,
    "shutting-down": State.GOING,
    "stopping": State.GOING,
    "stopped": State.GOING,  # it runs no node and still costs its disk: it is to be ended
    "terminated": State.GONE,
}


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


def tags_of(seen: Mapping[str, Any]) -> dict[str, str]:
    tags: Iterable[Mapping[str, str]] = seen.get("Tags", ())
    return {tag["Key"]: tag["Value"] for tag in tags}


def state_of(seen: Mapping[str, Any]) -> State:
    return _STATES[seen["State"]["Name"]]


def handle_of(region: str, seen: Mapping[str, Any]) -> Handle:
    launch_id = tags_of(seen).get(f"{PREFIX}launch-id", "")
    return Handle(provider=KIND, id=f"{region}/{seen['InstanceId']}", launch_id=launch_id)


def instance_of(region: str, seen: Mapping[str, Any]) -> Instance:
    own = {key.removeprefix(PREFIX): value for key, value in tags_of(seen).items() if key.startswith(PREFIX)}
    is_ours = {"cluster", "pool", "run", "expires-at"} <= own.keys()
    reason = seen.get("StateReason") or {}
    return Instance(
        handle=handle_of(region, seen),
        tags=Tags(cluster=own["cluster"], pool=own["pool"], run=own["run"], expires_at=float(own["expires-at"]))
        if is_ours
        else None,
        state=state_of(seen),
        created_at=seen["LaunchTime"].timestamp(),
        type=seen["InstanceType"],
        region=own.get("region") or region,
        is_spot=seen.get("InstanceLifecycle") == "spot",
        message=str(reason.get("Message", "")),
    )
