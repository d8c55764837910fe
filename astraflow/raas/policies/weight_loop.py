"""Weight loop of a node: follows the versions of one policy."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol

from astraflow.contract.errors import CorruptData, InternalError, InvalidInput, NotTrusted, Unavailable
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.nodes import EvaluationMode
from astraflow.raas.counters import NodeCounters
from astraflow.raas.engines.base import PauseMode
from astraflow.raas.policies.adapter_bases import AdapterBases, VersionSource
from astraflow.raas.policies.served_policies import ServedPolicies, ServedPolicy
from astraflow.raas.policies.transfer_totals import TransferTotals
from astraflow.raas.policies.verification import MismatchGauges, WeightVerification
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import Backoff
from astraflow.runtime.tracing import span
from astraflow.weights.tensors import VerifiedWeights
from astraflow.weights.transfer.puller import PulledVersion, TransferStats

log = get_logger()

FIRST_BACKOFF_S = 2.0
MAX_BACKOFF_S = 60.0
"""Delay after a version that could not be fetched or loaded; doubles with each failure."""


class NewestSource(VersionSource, Protocol):
    """Version source that follows the newest version."""

    async def pull_newer(self) -> PulledVersion:
        """Returns the newest version once it is newer than the committed one."""


class WeightLoop:
    """Keeps one engine on the newest version, verified twice: its bits by hashes, its effect by `WeightVerification`.

        wait for a newer version ──► pull, verify ──► load ──► measure the mismatch ──► serve
                                                        ▲            │ too large
                                                        └─full, once─┤
                                                                     └─► unready until a later probe passes

    The previous version serves while the next one is fetched and staged. During the swap, requests in flight wait and
    then continue with the new version; if they did so on the cache of the old weights, the policy is unready until the
    next version. `held` keeps the engine at chosen versions for an evaluation; newer ones are loaded afterwards.
    """

    def __init__(
        self,
        served: ServedPolicy,
        source: Callable[[PolicyId], NewestSource],
        policies: ServedPolicies,
        *,
        counters: NodeCounters,
        gauges: MismatchGauges,
        transfers: TransferTotals,
        clock: Clock,
    ) -> None:
        """source: factory of a source without a committed version."""
        self._served = served
        self._new_source = source
        self._source = source(served.policy)
        self._adapter_bases = AdapterBases(source)
        self._policies = policies
        self._counters = counters
        self._verification = WeightVerification(served, gauges=gauges, counters=counters)
        self._transfers = transfers
        self._clock = clock
        self._is_unready = False
        """True while the engine is paused after a failed check."""
        self._swap_lock = asyncio.Lock()
        """Locked while a version is loaded, made unready after a failed check, or held for an evaluation."""
        self._pull: asyncio.Future[PulledVersion] | None = None
        """Wait for a newer version."""
        self._backoff = Backoff(clock, first_s=FIRST_BACKOFF_S, max_s=MAX_BACKOFF_S)

    async def run(self) -> None:
        """Runs until cancelled. Raises: errors that a retry does not cure (NotAuthenticated, ...)."""
        checks = asyncio.create_task(self._drop_stale_versions())
        try:
            await self._follow_versions()
        finally:
            checks.cancel()
            await asyncio.wait({checks})

    @asynccontextmanager
    async def held(self) -> AsyncIterator[Callable[[Version], Awaitable[None]]]:
        """Follows no newer version while the block runs; provides a function that serves a chosen version.

        The function raises: UnknownVersion; Unavailable when the engine does not load weights and serves another
        version; InternalError when the version cannot be served.
        """
        async with self._swap_lock:
            yield self._serve_held

    async def held_problem(self) -> str:
        """Returns why the held version is not served any more; empty while it is."""
        return await self._verification.held_problem()

    async def _serve_held(self, version: Version) -> None:
        """Loads the version unless the engine serves it."""
        policy, engine = self._served.policy, self._served.engine
        if engine.version != version or not self._served.is_serving:
            if engine.evaluation_mode is EvaluationMode.SERVED_VERSION:
                raise Unavailable(
                    f"cannot hold version {version} of {policy!r}: the server serves version {engine.version}; "
                    "evaluate the newest version",
                    code="weights.other_version_served",
                )
            source = self._new_source(policy)
            pulled = await source.pull_exact(version)
            self._counters.add("evaluation_bytes", pulled.stats.full_bytes + pulled.stats.delta_bytes)
            self._source = source
            if self._pull is not None:
                self._pull.cancel()  # its version is newer than that of the former source
            began_at = self._clock.now()
            await self._serve(pulled)
            self._counters.add("evaluation_loads")
            self._counters.add("evaluation_load_s", self._clock.now() - began_at)
        if problem := await self.held_problem():
            raise InternalError(problem, code="weights.version_not_held")

    async def _pull_newer(self, source: NewestSource) -> PulledVersion | None:
        """Returns the next version; None when a hold has replaced the source."""
        pull = self._pull = asyncio.ensure_future(source.pull_newer())
        try:
            await asyncio.wait({pull})
        finally:
            pull.cancel()
        return None if pull.cancelled() else pull.result()

    async def _follow_versions(self) -> None:
        while True:
            source = self._source
            try:
                pulled = await self._pull_newer(source)
            except (CorruptData, InternalError, InvalidInput, NotTrusted) as problem:
                self._note_failure("cannot fetch a version", problem)
                await self._backoff.wait()
                continue
            if pulled is None:
                continue
            self._count_transfer(pulled.stats)
            async with self._swap_lock:
                if source is not self._source:
                    continue
                is_loaded = await self._serve(pulled)
            if not is_loaded:
                await self._backoff.wait()

    async def _drop_stale_versions(self) -> None:
        while True:
            version = await self._verification.next_stale_version()
            async with self._swap_lock:
                if self._served.is_serving and self._served.engine.version == version:
                    await self._make_unready()

    async def _serve(self, pulled: PulledVersion) -> bool:
        """Serves a version, or makes the policy unready; returns False when it could not be loaded."""
        weights = pulled.weights
        try:
            is_accepted = await self._load(
                weights if self._served.is_serving else _without_base(weights), pulled.stats.source
            )
            # A server of another party gets no weights: a second load would only wait again.
            loads_weights = self._served.engine.evaluation_mode is not EvaluationMode.SERVED_VERSION
            if not is_accepted and weights.manifest.probe is not None and loads_weights:
                is_accepted = await self._load(_without_base(weights), pulled.stats.source)
        except Exception as problem:
            self._note_failure("cannot load a version", problem)
            await self._make_unready()
            self._source = self._new_source(self._served.policy)
            return False
        self._backoff.reset()
        self._source.commit(weights)
        if is_accepted:
            self._policies.set_version(self._served.policy, weights.manifest.version)
            log.info("version_served", policy=self._served.policy, version=weights.manifest.version)
        else:
            await self._make_unready()
        return True

    async def _load(self, weights: VerifiedWeights, source: str) -> bool:
        """Swaps the weights; returns whether engine and trainer agree. source: name of their weight source."""
        engine = self._served.engine
        weights = await self._adapter_bases.attach_base(weights)
        with span("rl.weights.apply", version=f"{self._served.policy}:{weights.manifest.version}"):
            loaded = await engine.load(weights)
        self._transfers.record_load(source, loaded)
        self._verification.note_rounding(loaded)
        if self._served.is_serving:
            self._counters.add("weight_pause_s", loaded.stopped_s)
        if self._is_unready:
            await engine.resume()
            self._is_unready = False
        return await self._verification.accepts(weights.manifest, is_patch=weights.changes is not None)

    async def _make_unready(self) -> None:
        """Aborts requests on unverified weights and accepts none until a version passes."""
        self._policies.set_version(self._served.policy, None)
        self._is_unready = True
        await self._served.engine.pause(PauseMode.ABORT)

    def _note_failure(self, what: str, problem: Exception) -> None:
        self._counters.add("weight_failures")
        self._counters.note_error(f"{self._served.policy}: {what}: {type(problem).__name__}: {problem}")
        log.error("weight_load_failed", policy=self._served.policy, what=what, exc_info=problem)

    def _count_transfer(self, stats: TransferStats) -> None:
        self._transfers.record_transfer(stats)
        kind = "shared" if stats.shared_bytes else "full" if stats.base is None else "delta"
        self._counters.add(f"weight_updates_{kind}")
        self._counters.add("weight_bytes_shared", stats.shared_bytes)
        self._counters.add("weight_bytes_full", stats.full_bytes)
        self._counters.add("weight_bytes_delta", stats.delta_bytes)
        self._counters.add("weight_fetch_s", stats.fetch_s)
        self._counters.add("weight_verify_s", stats.decode_s + stats.stage_s + stats.verify_s)
        self._counters.add("weight_failures", stats.fallbacks)


def _without_base(weights: VerifiedWeights) -> VerifiedWeights:
    """Returns the same weights, for a full load instead of a patch."""
    return replace(weights, base=None, changes=None)
