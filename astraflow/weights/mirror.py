"""A store that follows another one, so that a region fetches each version once, whoever reads it there."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.ids import PolicyId
from astraflow.runtime.aio import Rests
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.logs import get_logger
from astraflow.weights.config import PullConfig
from astraflow.weights.origins import Origins, dialled
from astraflow.weights.puller import Puller
from astraflow.weights.signing import VerifyingKey
from astraflow.weights.store import WeightStore
from astraflow.weights.tensors import VerifiedWeights
from astraflow.wire.channel import Link

log = get_logger()

FIRST_REST_S = 1.0
MAX_REST_S = 60.0
"""After a version that could not be had or kept, the next try comes this much later, doubling each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """What a mirror follows. addresses: `HOST:PORT`, the one to be preferred first. dial: as `wire.channel.dial`."""

    addresses: tuple[str, ...]
    dial: Callable[..., Link]

    @property
    def name(self) -> str:
        """For people."""
        return ", ".join(self.addresses)


class Mirror:
    """Keeps a store on the newest versions of all policies of the stores it follows, until cancelled.

        notices of all policies ─► for each policy:  pull, prove ─► keep ─► readers here are told ─┐
                                                         ▲                                         │
                                                         └─────────────────────────────────────────┘

    Versions in between are skipped when the way is too long for all of them; manifests stay as they were signed. What
    is kept here is the base of the next delta, after a restart too. What it follows may be a mirror itself.
    """

    def __init__(
        self,
        store: WeightStore,
        upstream: Upstream,
        *,
        keep: Callable[[VerifiedWeights], Awaitable[None]],
        config: PullConfig,
        trusted: VerifyingKey | None = None,
        clock: Clock | None = None,
    ) -> None:
        """keep: puts a version into the store and tells its readers; see `WeightsServicer.copy`."""
        self._store = store
        self._upstream = upstream
        self._keep = keep
        self._trusted = trusted
        self._clock = clock or SystemClock()
        preferred, last = upstream.addresses[:-1], upstream.addresses[-1]
        self._config = config.model_copy(update={"sources": (*config.sources, *preferred)})
        self._last = last

    async def run(self) -> None:
        """Follow until cancelled; what goes wrong is logged and tried again."""
        async with (
            dialled(self._last, self._config, dial=self._upstream.dial, clock=self._clock) as origins,
            asyncio.TaskGroup() as tasks,
        ):
            async for policy in self._policies(origins):
                tasks.create_task(self._follow(policy, origins), name=f"mirror {policy}")

    async def _policies(self, origins: Origins) -> AsyncIterator[PolicyId]:
        """Each once: those of the store, then those that are announced."""
        known = set(self._store.policies)
        for policy in sorted(known):
            yield policy
        rests = Rests(self._clock, first_s=FIRST_REST_S, most_s=MAX_REST_S)
        while True:
            for origin in origins.usable():
                try:
                    async with aclosing(origin.client.watch(None, after=None)) as notices:
                        async for notice in notices:
                            rests.are_over()
                            if notice.policy not in known:
                                known.add(notice.policy)
                                yield notice.policy
                except AstraFlowError as problem:
                    log.warning("mirror_hears_nothing", origin=origin.name, problem=str(problem))
            await rests.take()

    async def _follow(self, policy: PolicyId, origins: Origins) -> None:
        puller = Puller(origins, policy, config=self._config, trusted=self._trusted, clock=self._clock)
        if (kept := self._store.newest(policy)) is not None:
            puller.commit(VerifiedWeights(manifest=kept[0], buffer=kept[1]))
        rests = Rests(self._clock, first_s=FIRST_REST_S, most_s=MAX_REST_S)
        while True:
            try:
                pulled = await puller.newer()
                await self._keep(pulled.weights)
            except AstraFlowError as problem:
                log.error("mirror_fell_behind", policy=policy, follows=self._upstream.name, problem=str(problem))
                await rests.take()
                continue
            rests.are_over()
            stats, kept = pulled.stats, self._store.newest(policy)
            puller.commit(pulled.weights if kept is None else replace(pulled.weights, buffer=kept[1]))
            log.info(
                "version_mirrored",
                policy=policy,
                version=stats.version,
                origin=stats.origin,
                bytes=stats.full_bytes + stats.delta_bytes,
                fetch_s=round(stats.fetch_s, 3),
                resumes=stats.resumes,
            )
