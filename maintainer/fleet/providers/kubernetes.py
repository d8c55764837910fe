"""Pods of a Kubernetes cluster as instances: one pod for each node, made by the official client.

The pod's name follows from the launch id, so the API server itself keeps a launch from being two. A pod is made first,
and then the secret with its token, which belongs to it: the kubelet waits for the secret, and whatever becomes of the
pod, the secret goes with it. A pod that is deleted tells its node, which drains within the pod's grace.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astraflow.runtime.clock import Clock
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    Auth,
    Capabilities,
    Capacity,
    Handle,
    Instance,
    Invalid,
    LaunchSpec,
    Quota,
    Quote,
    Retired,
    Retry,
    State,
    Unknown,
    fingerprint,
    require_package,
)
from maintainer.fleet.providers.choices import pool_options
from maintainer.fleet.providers.kubernetes_api import AlreadyExists, KubernetesApi, NotFound
from maintainer.fleet.providers.kubernetes_config import KubernetesOptions, PodOptions
from maintainer.fleet.providers.kubernetes_manifest import (
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
from maintainer.fleet.providers.kubernetes_pod import finished_at, is_finished, order_of, read_pod, want_of_place

require_package("kubernetes")  # importing the client takes a second

LAUNCHES_AT_ONCE = 8

REHEARSAL = "rehearsal"
"""Stands for a launch id, and for a token, in what is only tried."""

_LOOK_S = 0.5
"""Between two looks whether a pod has its place."""


@providers.register(KIND, options=KubernetesOptions)
class Kubernetes:
    """Pods of one namespace. Nothing is kept here: `directory` stays empty."""

    def __init__(self, options: KubernetesOptions, *, clock: Clock, directory: Path) -> None:
        self._options = options
        self._clock = clock
        self._api = KubernetesApi(options, threads=LAUNCHES_AT_ONCE + 2)

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        """Make the pod, then its secret; a pod of that name that is there already is this launch."""
        manifest = pod_manifest(self._options, spec, launch_id, now=self._clock.wall())
        try:
            pod = await self._api.create_pod(manifest)
        except AlreadyExists:
            pod = await self._known(spec, launch_id)
        except NotFound as problem:
            raise Invalid(str(problem)) from None
        if not is_finished(pod) and not pod["metadata"].get("deletionTimestamp"):
            await self._give_token(pod, spec.token)
            if self._options.place_wait_s:
                await self._until_placed(pod)
        return Handle(provider=KIND, id=pod["metadata"]["name"], launch_id=launch_id)

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> Retired:
        """Delete every pod with the launch's label; the kubelet tells the node, and waits for its grace."""
        pod_name(launch_id)
        outcome = Retired.GONE
        for pod in await self._api.pods({**MANAGED, LAUNCH: launch_id}):
            if keep is not None and pod["metadata"]["name"] == keep.id:
                continue
            if not pod["metadata"].get("deletionTimestamp"):
                await self._api.delete_pod(pod)
            if not is_finished(pod):
                outcome = Retired.GOING
        return outcome

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        """By label, page by page; pods that have long ended are removed."""
        now, found = self._clock.wall(), []
        for pod in await self._api.pods({**MANAGED, CLUSTER: label(cluster)}):
            if is_finished(pod) and now - finished_at(pod) > self._options.kept_s:
                await self._api.delete_pod(pod)
            else:
                found.append(read_pod(self._options, pod, now=now))
        return tuple(one for one in found if one.tags is None or one.tags.cluster == cluster)

    async def describe(self, handle: Handle) -> Instance:
        """Read the pod."""
        gone = Instance(handle=handle, tags=None, state=State.GONE)
        try:
            pod = await self._api.pod(handle.id)
        except NotFound:
            return gone
        instance = read_pod(self._options, pod, now=self._clock.wall())
        return instance if instance.handle == handle else gone

    def capabilities(self) -> Capabilities:
        """As the options have it. Lists are consistent reads, so nothing lags."""
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
        """The price that the options give the type."""
        kind, spot = pod_type(self._options, spec), self._options.spot
        pool_options(PodOptions, spec)
        share = 1 - spot.discount if spec.is_spot and spot is not None else 1.0
        return Quote(
            usd_per_hour=kind.usd_per_hour * share,
            launch_delay_s=self._options.launch_delay_s,
            source="as configured for the type" if kind.usd_per_hour else "no price is configured",
        )

    async def rehearse(self, spec: LaunchSpec) -> str:
        """Have the API server go all the way with a pod and its secret but for keeping them (`dryRun=All`).

        Admission and quotas are asked, the scheduler is not: whether a machine is free shows with a launch only.
        """
        manifest = pod_manifest(self._options, spec, REHEARSAL, now=self._clock.wall())
        try:
            pod = await self._api.create_pod(manifest, is_dry=True)
            await self._api.create_secret(secret_manifest(self._options, pod, REHEARSAL), is_dry=True)
        except (AlreadyExists, NotFound) as problem:
            raise Invalid(str(problem)) from None
        return f"the namespace {self._options.namespace} would take such a pod and its secret"

    async def close(self) -> None:
        """Let go of connections."""
        await self._api.close()

    async def _known(self, spec: LaunchSpec, launch_id: str) -> dict[str, Any]:
        """The pod that has the name."""
        name = pod_name(launch_id)
        try:
            pod = await self._api.pod(name)
        except NotFound:
            raise Retry(f"the pod {name} was there, and has gone in this moment") from None
        order = order_of(pod)
        if order.get("launch_id") != launch_id:
            raise Invalid(f"the pod {name} is there, and stands for another launch than {launch_id}")
        if order.get("fingerprint") != fingerprint(spec):
            raise Invalid(f"launch {launch_id} was made with another spec: a launch id stands for one instance")
        return pod

    async def _give_token(self, pod: Mapping[str, Any], token: str) -> None:
        """Where the secret cannot be, the pod must not stay: it would wait for it for ever."""
        name = pod["metadata"]["name"]
        try:
            await self._api.create_secret(secret_manifest(self._options, pod, token))
        except AlreadyExists:
            await self._check_secret(pod)
        except NotFound as problem:
            raise Retry(str(problem)) from None
        except (Quota, Auth, Invalid) as problem:
            await self._take_back(pod, name)
            raise type(problem)(str(problem)) from None

    async def _check_secret(self, pod: Mapping[str, Any]) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        try:
            owners = await self._api.secret_owners(name)
        except NotFound:
            raise Retry(f"the secret {name} was there, and has gone in this moment") from None
        if uid not in owners:
            raise Retry(f"the secret {name} is of an earlier pod, and not collected yet")

    async def _take_back(self, pod: Mapping[str, Any], name: str) -> None:
        try:
            await self._api.delete_pod(pod)
        except (Retry, Auth, Invalid, Unknown) as problem:
            raise Unknown(f"the pod {name} has no secret, and cannot be deleted: {problem}") from None

    async def _until_placed(self, pod: Mapping[str, Any]) -> None:
        """Raises: Capacity or Quota when no machine takes it in time; then it is deleted."""
        name, seen = pod["metadata"]["name"], pod
        give_up_at = self._clock.now() + self._options.place_wait_s
        while want := want_of_place(seen):
            if self._clock.now() >= give_up_at:
                await self._take_back(pod, name)
                why = read_pod(self._options, seen, now=self._clock.wall()).message or "no machine took it"
                raise (Quota if want == "Quota" else Capacity)(why)
            await asyncio.sleep(_LOOK_S)
            try:
                seen = await self._api.pod(name)
            except NotFound:
                return
