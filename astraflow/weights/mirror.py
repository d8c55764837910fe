"""Mirror: a store that follows another one, so that a region fetches each version once for all its readers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.ids import PolicyId
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import Backoff
from astraflow.weights.config import PullConfig
from astraflow.weights.signing import VerifyingKey
from astraflow.weights.store.store import WeightStore
from astraflow.weights.tensors import VerifiedWeights
from astraflow.weights.transfer.puller import Puller
from astraflow.weights.transfer.weight_sources import WeightSources, connect_sources
from astraflow.wire.channel import ServiceChannel

log = get_logger()

FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 60.0
"""Pauses after a version could not be fetched or stored: the first, and the limit of their doubling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Stores that a mirror follows. addresses: `HOST:PORT`, the preferred one first. dial: as `wire.channel.dial`."""

    addresses: tuple[str, ...]
    dial: Callable[..., ServiceChannel]

    @property
    def name(self) -> str:
        """Addresses for logs and reports."""
        return ", ".join(self.addresses)


class Mirror:
    """Keeps a store at the newest versions of all policies of the upstream stores, until cancelled.

        notices of all policies ─► for each policy:  pull, verify ─► store ─► local readers are notified ─┐
                                                          ▲                                               │
                                                          └───────────────────────────────────────────────┘

    Intermediate versions are skipped when there are too many to transfer; manifests keep their signature. The stored
    version is the base of the next delta, also after a restart. An upstream store may itself be a mirror.
    """

    def __init__(
        self,
        store: WeightStore,
        upstream: Upstream,
        *,
        store_version: Callable[[VerifiedWeights], Awaitable[None]],
        config: PullConfig,
        trusted: VerifyingKey | None = None,
        clock: Clock | None = None,
    ) -> None:
        """store_version: stores a version and notifies readers; see `WeightsServicer.copy`."""
        self._store = store
        self._upstream = upstream
        self._store_version = store_version
        self._trusted = trusted
        self._clock = clock or SystemClock()
        preferred, last = upstream.addresses[:-1], upstream.addresses[-1]
        self._config = config.model_copy(update={"sources": (*config.sources, *preferred)})
        self._store_address = last

    async def run(self) -> None:
        """Follows the upstream stores until cancelled; errors of fetching and storing are logged and retried."""
        async with (
            connect_sources(self._store_address, self._config, dial=self._upstream.dial, clock=self._clock) as sources,
            asyncio.TaskGroup() as tasks,
        ):
            async for policy in self._policies(sources):
                tasks.create_task(self._follow(policy, sources), name=f"mirror {policy}")

    async def _policies(self, sources: WeightSources) -> AsyncIterator[PolicyId]:
        """Yields each policy once: first the store's policies, then the policies that upstream announces."""
        yielded_policies = set(self._store.policies)
        for policy in sorted(yielded_policies):
            yield policy
        backoff = Backoff(self._clock, first_s=FIRST_BACKOFF_S, max_s=MAX_BACKOFF_S)
        while True:
            for source in sources.available():
                try:
                    async with aclosing(source.client.watch(None, after=None)) as notices:
                        async for notice in notices:
                            backoff.reset()
                            if notice.policy not in yielded_policies:
                                yielded_policies.add(notice.policy)
                                yield notice.policy
                except AstraFlowError as problem:
                    log.warning("mirror_watch_failed", source=source.name, problem=str(problem))
            await backoff.wait()

    async def _follow(self, policy: PolicyId, sources: WeightSources) -> None:
        puller = Puller(sources, policy, config=self._config, trusted=self._trusted, clock=self._clock)
        if (stored := self._store.newest(policy)) is not None:
            puller.commit(VerifiedWeights(manifest=stored[0], buffer=stored[1]))
        backoff = Backoff(self._clock, first_s=FIRST_BACKOFF_S, max_s=MAX_BACKOFF_S)
        while True:
            try:
                pulled = await puller.pull_newer()
                await self._store_version(pulled.weights)
            except Exception as problem:  # also of the operating system: a failing disk may work again later
                log.error(
                    "mirror_fell_behind",
                    policy=policy,
                    follows=self._upstream.name,
                    problem=str(problem),
                    exc_info=not isinstance(problem, AstraFlowError),
                )
                await backoff.wait()
                continue
            backoff.reset()
            stats, stored = pulled.stats, self._store.newest(policy)
            puller.commit(pulled.weights if stored is None else replace(pulled.weights, buffer=stored[1]))
            log.info(
                "version_mirrored",
                policy=policy,
                version=stats.version,
                source=stats.source,
                bytes=stats.full_bytes + stats.delta_bytes,
                fetch_s=round(stats.fetch_s, 3),
                resumes=stats.resumes,
            )
