"""Pods of a Kubernetes cluster as instances: one pod per node, with the official client.

The pod's name follows from the launch id, so that the API server prevents duplicates. The pod is created first, then
the secret with its token, which the pod owns: the kubelet waits for the secret, and it is deleted with the pod. A
deleted pod signals its node, which drains within the pod's grace period.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astraflow.runtime.clock import Clock
from astraflow.runtime.imports import require_package
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    AuthError,
    Capabilities,
    Handle,
    Instance,
    InvalidError,
    LaunchSpec,
    QuotaError,
    Quote,
    RetireResult,
    RetryError,
    State,
    UnknownError,
)
from maintainer.fleet.providers.kubernetes.api import AlreadyExists, KubernetesApi, NotFound
from maintainer.fleet.providers.kubernetes.config import KubernetesOptions, PodOptions
from maintainer.fleet.providers.kubernetes.manifest import (
    CLUSTER,
    KIND,
    LAUNCH,
    MANAGED,
    label,
    pod_manifest,
    pod_name,
    pod_type,
    secret_manifest,
)
from maintainer.fleet.providers.kubernetes.pods import finished_at, is_finished, order_of, read_pod, scheduling_obstacle
from maintainer.fleet.providers.launches import check_same_spec, configured_quote, pool_options
from maintainer.fleet.providers.places import LaunchPlaces

require_package("kubernetes", extra="k8s", to="use provider 'kubernetes'")  # importing the client takes a second

LAUNCHES_AT_ONCE = 8

PREFLIGHT_ID = "preflight"
"""Placeholder for launch id and token in dry runs."""

_POLL_S = 0.5
"""Interval between checks whether a pod is scheduled. Seconds."""


@providers.register(KIND, options=KubernetesOptions)
class Kubernetes:
    """Pods of one Kubernetes namespace. `directory` holds only the places of launches."""

    def __init__(self, options: KubernetesOptions, *, clock: Clock, directory: Path) -> None:
        self._options = options
        self._clock = clock
        self._api = KubernetesApi(options, threads=LAUNCHES_AT_ONCE + 2)
        self._places = LaunchPlaces(directory)

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        """Creates the pod, then its secret; an existing pod of that name is this launch."""
        manifest = pod_manifest(self._options, spec, launch_id, now=self._clock.wall())
        await asyncio.to_thread(self._places.remember, launch_id, await self._api.place())
        try:
            pod = await self._api.create_pod(manifest)
        except AlreadyExists:
            pod = await self._existing_pod(spec, launch_id)
        except NotFound as problem:
            raise InvalidError(str(problem), code="provider.not_found") from None
        if not is_finished(pod) and not pod["metadata"].get("deletionTimestamp"):
            await self._create_token_secret(pod, spec.token)
            if self._options.schedule_wait_s:
                await self._wait_until_scheduled(pod)
        return Handle(provider=KIND, id=pod["metadata"]["name"], launch_id=launch_id)

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> RetireResult:
        """Deletes every pod with the launch's label; the kubelet signals the node and waits for the grace period."""
        pod_name(launch_id)
        outcome = RetireResult.GONE
        for pod in await self._api.pods({**MANAGED, LAUNCH: launch_id}):
            if keep is not None and pod["metadata"]["name"] == keep.id:
                continue
            if not pod["metadata"].get("deletionTimestamp"):
                await self._api.delete_pod(pod)
            if not is_finished(pod):
                outcome = RetireResult.TERMINATING
        if outcome is RetireResult.GONE and keep is None:
            await asyncio.to_thread(self._places.end, launch_id, (await self._api.place(),))
        return outcome

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        """Lists pods by label; deletes expired finished pods."""
        now, instances = self._clock.wall(), []
        for pod in await self._api.pods({**MANAGED, CLUSTER: label(cluster)}):
            if is_finished(pod) and now - finished_at(pod) > self._options.retention_s:
                await self._api.delete_pod(pod)
            else:
                instances.append(read_pod(self._options, pod, now=now))
        own = [instance for instance in instances if instance.tags is None or instance.tags.cluster == cluster]
        return await asyncio.to_thread(self._places.listed, {await self._api.place(): own})

    async def describe(self, handle: Handle) -> Instance:
        """Reads the pod."""
        gone = Instance(handle=handle, tags=None, state=State.GONE)
        try:
            pod = await self._api.pod(handle.id)
        except NotFound:
            await asyncio.to_thread(self._places.check, handle.launch_id, (await self._api.place(),))
            return gone
        instance = read_pod(self._options, pod, now=self._clock.wall())
        return instance if instance.handle == handle else gone

    def capabilities(self) -> Capabilities:
        """Returns the capabilities, as configured. Lists are consistent reads without lag."""
        spot = self._options.spot
        return Capabilities(
            kind=KIND,
            has_spot=spot is not None,
            notice_s=spot.notice_s if spot is not None else 0.0,
            listing_lag_s=0.0,
            launch_delay_s=self._options.launch_delay_s,
            launches_at_once=LAUNCHES_AT_ONCE,
        )

    async def quote(self, spec: LaunchSpec) -> Quote:
        """Returns the configured price of the type."""
        kind, spot = pod_type(self._options, spec), self._options.spot
        pool_options(PodOptions, spec)
        discount = spot.discount if spec.is_spot and spot is not None else 0.0
        return configured_quote(kind.usd_per_hour, launch_delay_s=self._options.launch_delay_s, discount=discount)

    async def preflight(self, spec: LaunchSpec) -> str:
        """Creates a pod and its secret as a dry run (`dryRun=All`).

        The dry run checks admission and quotas, but not the scheduler: free capacity shows at a launch only.
        """
        manifest = pod_manifest(self._options, spec, PREFLIGHT_ID, now=self._clock.wall())
        try:
            pod = await self._api.create_pod(manifest, is_dry=True)
            await self._api.create_secret(secret_manifest(self._options, pod, PREFLIGHT_ID), is_dry=True)
        except (AlreadyExists, NotFound) as problem:
            raise InvalidError(str(problem), code="provider.not_found") from None
        return f"the namespace {self._options.namespace} would accept the pod and its secret"

    async def close(self) -> None:
        """Closes connections."""
        await self._api.close()

    async def _existing_pod(self, spec: LaunchSpec, launch_id: str) -> dict[str, Any]:
        """Returns the existing pod of the launch."""
        name = pod_name(launch_id)
        try:
            pod = await self._api.pod(name)
        except NotFound:
            raise RetryError(
                f"cannot launch {launch_id}: the existing pod {name} was just deleted; retry",
                code="provider.pod_deleted",
            ) from None
        order = order_of(pod)
        if order.get("launch_id") != launch_id:
            raise InvalidError(
                f"cannot launch {launch_id}: the pod {name} belongs to another launch; use a new launch id",
                code="provider.name_in_use",
            )
        check_same_spec(order.get("fingerprint"), spec, launch_id)
        return pod

    async def _create_token_secret(self, pod: Mapping[str, Any], token: str) -> None:
        """Creates the pod's secret. Deletes the pod if that fails, because it would wait for the secret forever."""
        name = pod["metadata"]["name"]
        try:
            await self._api.create_secret(secret_manifest(self._options, pod, token))
        except AlreadyExists:
            await self._check_secret(pod)
        except NotFound as problem:
            raise RetryError(str(problem), code="provider.pod_deleted") from None
        except (QuotaError, AuthError, InvalidError) as problem:
            await self._delete_unused_pod(pod, name)
            raise type(problem)(str(problem), code=problem.code) from None

    async def _check_secret(self, pod: Mapping[str, Any]) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        try:
            owners = await self._api.secret_owners(name)
        except NotFound:
            raise RetryError(
                f"cannot read the secret {name}: it was just deleted; retry", code="provider.secret_deleted"
            ) from None
        if uid not in owners:
            raise RetryError(
                f"cannot use the secret {name}: it belongs to an earlier pod that is being deleted; retry",
                code="provider.secret_of_earlier_pod",
            )

    async def _delete_unused_pod(self, pod: Mapping[str, Any], name: str) -> None:
        try:
            await self._api.delete_pod(pod)
        except (RetryError, AuthError, InvalidError, UnknownError) as problem:
            raise UnknownError(
                f"cannot clean up the pod {name} without a secret: {problem}", code="provider.cleanup_failed"
            ) from None

    async def _wait_until_scheduled(self, pod: Mapping[str, Any]) -> None:
        """Waits until the pod is scheduled. Deletes it on timeout. Raises: CapacityError or QuotaError."""
        name, current = pod["metadata"]["name"], pod
        give_up_at = self._clock.now() + self._options.schedule_wait_s
        while obstacle := scheduling_obstacle(current):
            if self._clock.now() >= give_up_at:
                await self._delete_unused_pod(pod, name)
                reason = (
                    read_pod(self._options, current, now=self._clock.wall()).message
                    or "the pod was not scheduled in time"
                )
                raise obstacle(reason)
            await asyncio.sleep(_POLL_S)
            try:
                current = await self._api.pod(name)
            except NotFound:
                return
