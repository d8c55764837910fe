"""SkyPilot's clusters as instances: one cluster of one machine for each node, through a SkyPilot API server.

SkyPilot stays in an environment of its own (its package wants older libraries than ours): this speaks to its API
server. A launch is a request that goes on by itself; until it shows in the list of clusters, its request stands for it.
SkyPilot runs a second launch of one name as another job on the same machine, so the job holds a lock of the machine,
and a second one ends. A machine is gone when SkyPilot has no cluster of its name and no request for it goes on: a
teardown that failed, or what a failed launch left behind, is asked to end again and again.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from astraflow.runtime.clock import Clock
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    Capabilities,
    Handle,
    Instance,
    Invalid,
    LaunchSpec,
    ProviderError,
    Quote,
    Retired,
    Retry,
    State,
    Tags,
    fingerprint,
)
from maintainer.fleet.providers.choices import type_name
from maintainer.fleet.providers.exclusive import exclusive
from maintainer.fleet.providers.skypilot_api import DOWN, LAUNCH, NoCluster, Request, SkyPilotApi
from maintainer.fleet.providers.skypilot_config import SkyPilotOptions
from maintainer.fleet.providers.skypilot_task import PREFIX, cluster_name, cluster_type, order_of, task_of

KIND = "skypilot"

REHEARSAL = "rehearsal"
"""Stands for a launch id, a token and a cluster in what is only tried; clusters that are listed have a prefix."""

_RECENT_S = 3600.0
"""A launch that failed is listed so long."""
_DOWN_WAIT_S = 2.0
"""A teardown that fails at once says why; one that takes longer is asked for again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sight:
    """All that SkyPilot says of one name."""

    name: str
    cluster: Mapping[str, Any] | None
    requests: tuple[Request, ...]
    """Newest first."""

    def active(self, name: str) -> tuple[Request, ...]:
        """Requests of that name that go on."""
        return tuple(one for one in self.requests if one.name == name and one.is_active)

    def last_launch(self) -> Request | None:
        """The newest."""
        return next((one for one in self.requests if one.name == LAUNCH), None)

    def order(self) -> Mapping[str, Any]:
        """What was asked for; empty when nobody knows any more."""
        tasks = [self.cluster.get("last_creation_yaml") or ""] if self.cluster else []
        tasks += [one.task for one in self.requests if one.name == LAUNCH]
        return next((order for order in map(order_of, tasks) if order), {})


@providers.register(KIND, options=SkyPilotOptions)
class SkyPilot:
    """Clusters of one user. `directory` holds locks only."""

    def __init__(self, options: SkyPilotOptions, *, clock: Clock, directory: Path) -> None:
        self._options = options
        self._clock = clock
        self._directory = directory
        token = os.environ.get(options.token_variable, "")
        self._api = SkyPilotApi(options.endpoint, token=token, user=options.user, timeout_s=options.timeout_s)
        self._reasons: dict[str, str] = {}
        """Why launches failed, by request: asked once."""

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        """Submit a launch, unless one has that name; wait a moment whether it is refused."""
        name, task = cluster_name(launch_id), task_of(self._options, spec, launch_id, now=self._clock.wall())
        async with exclusive(self._directory, launch_id):
            seen = await self._see(name, refresh="NONE")
            last = seen.last_launch()
            if seen.cluster is None and (last is None or last.status in ("FAILED", "CANCELLED")):
                request = await self._api.launch(name, task)
            else:
                order = seen.order()
                if order and (order.get("launch_id") != launch_id or order.get("fingerprint") != fingerprint(spec)):
                    raise Invalid(f"launch {launch_id} was made with another spec: a launch id stands for one instance")
                request = last.id if last is not None and last.is_active else ""
        if request and self._options.answer_wait_s:
            await self._until_refused(request, spec.token)
        return Handle(provider=KIND, id=name, launch_id=launch_id)

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> Retired:
        """Stop a launch that goes on, then have the cluster ended, again until it is. Raises: why it could not be."""
        name = cluster_name(launch_id)
        if keep is not None and keep.id == name:
            return Retired.GONE  # a name is one cluster
        seen = await self._see(name, refresh="NONE")
        launching = seen.active(LAUNCH)
        if launching:
            await self._api.cancel([one.id for one in launching])
            return Retired.GOING
        if seen.active(DOWN):
            return Retired.GOING
        if seen.cluster is None:
            return Retired.GONE
        try:
            await self._api.result(await self._api.down(name), within_s=_DOWN_WAIT_S)
        except NoCluster:
            return Retired.GONE
        return Retired.GOING

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        """Clusters, launches that are not clusters yet, and those that failed lately."""
        requests = await self._api.requests()
        known = {one["name"]: one for one in await self._api.clusters(refresh="AUTO")}
        recent = self._clock.wall() - _RECENT_S
        asked = {one.cluster for one in requests if one.is_active or one.created_at > recent}
        found = []
        for name in sorted({*known, *asked}):
            if name.startswith(PREFIX):
                of_name = tuple(one for one in requests if one.cluster == name)
                found.append(await self._instance(_Sight(name=name, cluster=known.get(name), requests=of_name)))
        return tuple(one for one in found if one.tags is not None and one.tags.cluster == cluster)

    async def describe(self, handle: Handle) -> Instance:
        """Ask, the clouds too."""
        instance = await self._instance(await self._see(handle.id, refresh="FORCE"))
        is_it = instance.handle.launch_id == handle.launch_id
        return instance if is_it else Instance(handle=handle, tags=None, state=State.GONE)

    def capabilities(self) -> Capabilities:
        """As the options have it; how long before a preemption is told depends on the cloud that was taken."""
        return Capabilities(
            kind=KIND,
            has_spot=True,
            listing_lag_s=self._options.listing_lag_s,
            launch_delay_s=self._options.launch_delay_s,
            launches_at_once=4,
        )

    async def quote(self, spec: LaunchSpec) -> Quote:
        """The price that the options give the type."""
        kind = cluster_type(self._options, spec)
        return Quote(
            usd_per_hour=kind.usd_per_hour * (1 - self._options.spot_discount if spec.is_spot else 1.0),
            launch_delay_s=self._options.launch_delay_s,
            source="as configured for the type" if kind.usd_per_hour else "no price is configured",
        )

    async def rehearse(self, spec: LaunchSpec) -> str:
        """Have SkyPilot choose a cloud and a machine for the task, and stop there (`dryrun`)."""
        task = task_of(self._options, replace(spec, token=REHEARSAL), REHEARSAL, now=self._clock.wall())
        request, limit_s = await self._api.launch(REHEARSAL, task, is_dry=True), self._options.timeout_s
        try:
            await self._api.outcome(request, within_s=limit_s)
        except TimeoutError:
            raise Retry(f"SkyPilot has not decided within {limit_s:g} s where it would start one") from None
        return f"SkyPilot finds a cloud for a machine of type {type_name(self._options.types, spec)}"

    async def close(self) -> None:
        """Let go of connections."""
        await self._api.close()

    async def _see(self, name: str, *, refresh: str) -> _Sight:
        """Requests first: what ends in between shows as a cluster, or as one that is gone."""
        requests = await self._api.requests(name)
        known = await self._api.clusters([name], refresh=refresh)
        return _Sight(name=name, cluster=next(iter(known), None), requests=requests)

    async def _until_refused(self, request: str, token: str) -> None:
        try:
            await self._api.result(request, within_s=self._options.answer_wait_s)
        except ProviderError as problem:
            text = str(problem)
            raise type(problem)(text.replace(token, "***") if token else text) from None

    async def _instance(self, seen: _Sight) -> Instance:
        order = seen.order()
        tags, last, cluster = order.get("tags"), seen.last_launch(), seen.cluster
        state, message = state_of(seen)
        if state is State.GONE and last is not None and last.status == "FAILED":
            message = await self._why(last)
        return Instance(
            handle=Handle(provider=KIND, id=seen.name, launch_id=str(order.get("launch_id", ""))),
            tags=Tags(**tags) if isinstance(tags, dict) and set(tags) == set(Tags.__slots__) else None,
            state=state,
            created_at=min([one.created_at for one in seen.requests if one.name == LAUNCH] or [_launched_at(cluster)]),
            type=str(order.get("type", "")),
            region=str(order.get("region", "")),
            is_spot=bool(order.get("is_spot", False)),
            message=message,
        )

    async def _why(self, request: Request) -> str:
        """What a launch failed with."""
        if request.id not in self._reasons:
            try:
                await self._api.result(request.id, within_s=self._options.timeout_s)
                said = "the launch failed"
            except ProviderError as problem:
                said = f"the launch failed: {problem}"
            self._reasons[request.id] = said
        return self._reasons[request.id]


def state_of(seen: _Sight) -> tuple[State, str]:
    """Where a cluster stands, and why.

    no cluster:  a request goes on ─► PENDING or GOING, else GONE
    a cluster:   INIT with its launch ─► PENDING; UP ─► RUNNING; else ─► STUCK: it costs, and no node runs
    """
    cluster, status = seen.cluster, (seen.cluster or {}).get("status", "")
    if seen.active(DOWN) or status == "AUTOSTOPPING":
        return State.GOING, "is being ended"
    if cluster is None:
        return (State.PENDING, "") if seen.active(LAUNCH) else (State.GONE, "")
    if status == "UP":
        return State.RUNNING, ""
    if seen.active(LAUNCH):
        return State.PENDING, str(cluster.get("init_status_reason") or "")
    return State.STUCK, f"is {status}, and nothing goes on: {cluster.get('init_status_reason') or 'no reason is told'}"


def _launched_at(cluster: Mapping[str, Any] | None) -> float:
    return float((cluster or {}).get("launched_at") or 0.0)
