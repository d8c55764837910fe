"""SkyPilot clusters as instances: one cluster of one machine per node, through a SkyPilot API server.

SkyPilot runs in a separate environment, because its package requires older libraries; this provider uses its server. A
launch is a request that continues by itself, and represents the instance until the cluster is listed. SkyPilot runs a
second launch of one name as another job on the same machine, so a job holds a lock of the machine, and a second one
ends. An instance is gone when SkyPilot has neither a cluster of its name nor an active request for it; failed teardowns
and remains of failed launches are terminated repeatedly until then.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from astraflow.runtime.clock import Clock
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    AuthError,
    Capabilities,
    Handle,
    Instance,
    LaunchSpec,
    ProviderError,
    Quote,
    RetireResult,
    RetryError,
    State,
)
from maintainer.fleet.providers.launches import (
    check_same_spec,
    configured_quote,
    launch_lock,
    ordered_instance,
    type_name,
    without_token,
)
from maintainer.fleet.providers.places import LaunchPlaces
from maintainer.fleet.providers.skypilot.api import DOWN, LAUNCH, NoCluster, Request, SkyPilotApi
from maintainer.fleet.providers.skypilot.tasks import (
    PREFIX,
    SkyPilotOptions,
    cluster_name,
    cluster_type,
    order_of,
    task_of,
)

KIND = "skypilot"

PREFLIGHT_ID = "preflight"
"""Placeholder for launch id, token and cluster in dry runs; real cluster names have a prefix."""

_RECENT_S = 3600.0
"""Time for which a failed launch is listed. Seconds."""
_DOWN_WAIT_S = 2.0
"""Time to wait for an early failure of a teardown; a slower one is requested again. Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClusterSnapshot:
    """State of a cluster name in SkyPilot."""

    name: str
    cluster: Mapping[str, Any] | None
    requests: tuple[Request, ...]
    """Newest first."""

    def active(self, name: str) -> tuple[Request, ...]:
        """Returns active requests of an operation."""
        return tuple(request for request in self.requests if request.name == name and request.is_active)

    def last_launch(self) -> Request | None:
        """Returns the newest launch request."""
        return next((request for request in self.requests if request.name == LAUNCH), None)

    def order(self) -> Mapping[str, Any]:
        """Returns the launch order; empty when it is unknown."""
        tasks = [self.cluster.get("last_creation_yaml") or ""] if self.cluster else []
        tasks += [request.task for request in self.requests if request.name == LAUNCH]
        return next((order for order in map(order_of, tasks) if order), {})


@providers.register(KIND, options=SkyPilotOptions)
class SkyPilot:
    """SkyPilot clusters of one user. `directory` holds only lock files and the places of launches."""

    def __init__(self, options: SkyPilotOptions, *, clock: Clock, directory: Path) -> None:
        self._options = options
        self._clock = clock
        self._directory = directory
        self._places = LaunchPlaces(directory)
        self._place = f"{options.user} at {options.endpoint}"
        """User and server, whose clusters this provider sees."""
        self._api = SkyPilotApi(options.endpoint, token=self._token, user=options.user, timeout_s=options.timeout_s)
        self._reasons: dict[str, str] = {}
        """Reasons of failed launches by request id, read once."""

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        """Submits a launch unless one has that name; waits briefly for a refusal."""
        name, task = cluster_name(launch_id), task_of(self._options, spec, launch_id, now=self._clock.wall())
        async with launch_lock(self._directory, launch_id):
            snapshot = await self._snapshot(name, refresh="NONE")
            last_launch = snapshot.last_launch()
            if snapshot.cluster is None and (last_launch is None or last_launch.status in ("FAILED", "CANCELLED")):
                await asyncio.to_thread(self._places.remember, launch_id, self._place)
                request = await self._api.launch(name, task)
            else:
                order = snapshot.order()
                if order:  # names are in lower case, so that two launch ids can have one name
                    is_same_id = order.get("launch_id") == launch_id
                    check_same_spec(order.get("fingerprint") if is_same_id else None, spec, launch_id)
                request = last_launch.id if last_launch is not None and last_launch.is_active else ""
        if request and self._options.answer_wait_s:
            await self._wait_for_refusal(request, spec.token)
        return Handle(provider=KIND, id=name, launch_id=launch_id)

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> RetireResult:
        """Cancels an active launch, then terminates the cluster. Repeat it until it returns GONE."""
        name = cluster_name(launch_id)
        if keep is not None and keep.id == name:
            return RetireResult.GONE  # names are unique
        snapshot = await self._snapshot(name, refresh="NONE")
        launching = snapshot.active(LAUNCH)
        if launching:
            await self._api.cancel([request.id for request in launching])
            return RetireResult.TERMINATING
        if snapshot.active(DOWN):
            return RetireResult.TERMINATING
        if snapshot.cluster is not None:
            try:
                await self._api.result(await self._api.down(name), within_s=_DOWN_WAIT_S)
            except NoCluster:
                pass  # it has just ended
            else:
                return RetireResult.TERMINATING
        await asyncio.to_thread(self._places.end, launch_id, (self._place,))
        return RetireResult.GONE

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        """Lists clusters, launches without a cluster yet, and recently failed launches."""
        requests = await self._api.requests()
        cluster_by_name = {item["name"]: item for item in await self._api.clusters(refresh="AUTO")}
        recent = self._clock.wall() - _RECENT_S
        requested_names = {item.cluster for item in requests if item.is_active or item.created_at > recent}
        instances = []
        for name in sorted({*cluster_by_name, *requested_names}):
            if name.startswith(PREFIX):
                cluster_requests = tuple(item for item in requests if item.cluster == name)
                instances.append(
                    await self._instance(
                        _ClusterSnapshot(name=name, cluster=cluster_by_name.get(name), requests=cluster_requests)
                    )
                )
        own = [item for item in instances if item.tags is not None and item.tags.cluster == cluster]
        return await asyncio.to_thread(self._places.listed, {self._place: own})

    async def describe(self, handle: Handle) -> Instance:
        """Reads the cluster, with a query of the cloud."""
        instance = await self._instance(await self._snapshot(handle.id, refresh="FORCE"))
        if instance.handle.launch_id == handle.launch_id:
            return instance
        await asyncio.to_thread(self._places.check, handle.launch_id, (self._place,))
        return Instance(handle=handle, tags=None, state=State.GONE)

    def capabilities(self) -> Capabilities:
        """Returns the capabilities, as configured. The preemption notice depends on the chosen cloud."""
        return Capabilities(
            kind=KIND,
            has_spot=True,
            listing_lag_s=self._options.listing_lag_s,
            launch_delay_s=self._options.launch_delay_s,
            launches_at_once=4,
        )

    async def quote(self, spec: LaunchSpec) -> Quote:
        """Returns the configured price of the type."""
        kind, discount = cluster_type(self._options, spec), self._options.spot_discount if spec.is_spot else 0.0
        return configured_quote(kind.usd_per_hour, launch_delay_s=self._options.launch_delay_s, discount=discount)

    async def preflight(self, spec: LaunchSpec) -> str:
        """Lets SkyPilot choose a cloud and instance type for the task, as a dry run."""
        task = task_of(self._options, replace(spec, token=PREFLIGHT_ID), PREFLIGHT_ID, now=self._clock.wall())
        request, limit_s = await self._api.launch(PREFLIGHT_ID, task, is_dry=True), self._options.timeout_s
        try:
            await self._api.outcome(request, within_s=limit_s)
        except TimeoutError:
            raise RetryError(
                f"cannot check the launch: SkyPilot chose no cloud within {limit_s:g} s; retry later",
                code="provider.no_answer",
            ) from None
        return f"SkyPilot found a cloud for an instance of type {type_name(self._options.types, spec)}"

    async def close(self) -> None:
        """Closes connections."""
        await self._api.close()

    def _token(self) -> str:
        """Returns the current token; empty without one. Raises: AuthError."""
        if not self._options.token_file:
            return os.environ.get(self._options.token_variable, "")
        try:
            return Path(self._options.token_file).read_text(encoding="ascii").strip()
        except (OSError, ValueError) as problem:
            raise AuthError(
                f"cannot read the token of SkyPilot's server: {problem}; correct token_file",
                code="provider.no_credentials",
            ) from None

    async def _snapshot(self, name: str, *, refresh: str) -> _ClusterSnapshot:
        """Reads requests before clusters, so that a request that ends in between shows as a cluster or as gone."""
        requests = await self._api.requests(name)
        clusters = await self._api.clusters([name], refresh=refresh)
        return _ClusterSnapshot(name=name, cluster=next(iter(clusters), None), requests=requests)

    async def _wait_for_refusal(self, request: str, token: str) -> None:
        try:
            await self._api.result(request, within_s=self._options.answer_wait_s)
        except ProviderError as problem:
            raise without_token(problem, token) from None

    async def _instance(self, snapshot: _ClusterSnapshot) -> Instance:
        order = snapshot.order()
        last, cluster = snapshot.last_launch(), snapshot.cluster
        state, message = state_of(snapshot)
        if state is State.GONE and last is not None and last.status == "FAILED":
            message = await self._failure_reason(last)
        return ordered_instance(
            order,
            handle=Handle(provider=KIND, id=snapshot.name, launch_id=str(order.get("launch_id", ""))),
            state=state,
            created_at=min(
                [request.created_at for request in snapshot.requests if request.name == LAUNCH]
                or [_launched_at(cluster)]
            ),
            notice_at=_launched_at(cluster) if _is_preempted(state, last, is_spot=order.get("is_spot")) else None,
            message=message,
        )

    async def _failure_reason(self, request: Request) -> str:
        """Returns the error of a failed launch."""
        if request.id not in self._reasons:
            try:
                await self._api.result(request.id, within_s=self._options.timeout_s)
                reason = "the launch failed"
            except RetryError as problem:
                return f"the launch failed: {problem}"  # perhaps only the answer: read again at the next list
            except ProviderError as problem:
                reason = f"the launch failed: {problem}"
            self._reasons[request.id] = reason
        return self._reasons[request.id]


def state_of(snapshot: _ClusterSnapshot) -> tuple[State, str]:
    """Returns a cluster's state, and the reason.

    no cluster:  active request ─► PENDING or TERMINATING, else GONE
    cluster:     INIT with an active launch ─► PENDING; UP ─► RUNNING; else ─► STUCK: it costs money without a node
    """
    cluster, status = snapshot.cluster, (snapshot.cluster or {}).get("status", "")
    if snapshot.active(DOWN) or status == "AUTOSTOPPING":
        return State.TERMINATING, "terminating"
    if cluster is None:
        return (State.PENDING, "") if snapshot.active(LAUNCH) else (State.GONE, "")
    if status == "UP":
        return State.RUNNING, ""
    if snapshot.active(LAUNCH):
        return State.PENDING, str(cluster.get("init_status_reason") or "")
    return (
        State.STUCK,
        f"{status} without an active request: {cluster.get('init_status_reason') or 'no reason reported'}",
    )


def _is_preempted(state: State, last_launch: Request | None, *, is_spot: object) -> bool:
    """Returns whether a spot cluster broke after its launch. SkyPilot tells no reason, and no time."""
    is_broken = state is State.STUCK and last_launch is not None and last_launch.status == "SUCCEEDED"
    return bool(is_spot) and is_broken


def _launched_at(cluster: Mapping[str, Any] | None) -> float:
    return float((cluster or {}).get("launched_at") or 0.0)
