"""Second engine of each policy for pinned versions, besides the engine that serves the newest version."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from astraflow.contract.errors import InternalError
from astraflow.contract.ids import PolicyId, Version
from astraflow.raas.counters import NodeCounters
from astraflow.raas.engines.base import Engine
from astraflow.raas.engines.logprob_mismatch import measure_logprob_mismatch, mismatch_message
from astraflow.raas.policies.adapter_bases import AdapterBases, VersionSource
from astraflow.raas.policies.served_policies import ServedPolicies, ServedPolicy
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.weights.tensors import VerifiedWeights

log = get_logger()


class CommittedSource(VersionSource, Protocol):
    """Version source that knows which version the engine serves, so that later ones are fetched as deltas to it."""

    def commit(self, weights: VerifiedWeights) -> None:
        """Records that the engine serves these weights."""


@dataclass(slots=True, kw_only=True)
class _PinnedEngine:
    served: ServedPolicy
    source: CommittedSource
    bases: AdapterBases
    failed: asyncio.Task[str]
    """Ends with the reason when the engine cannot be kept running."""
    version: Version | None = None
    """Version that is loaded and verified; None during a load or after a failed one."""


class SecondEngines:
    """Builds a second engine for each policy; the engines for training are not affected."""

    def __init__(
        self,
        build: Callable[[PolicyId], Awaitable[ServedPolicy]],
        source: Callable[[PolicyId], CommittedSource],
        *,
        counters: NodeCounters,
        clock: Clock,
    ) -> None:
        """source: factory of a source without a committed version."""
        self._build = build
        self._new_source = source
        self._counters = counters
        self._clock = clock
        self._engines: dict[PolicyId, _PinnedEngine] = {}

    @property
    def engines(self) -> dict[PolicyId, Engine]:
        """Engines that exist now."""
        return {policy: pinned.served.engine for policy, pinned in self._engines.items()}

    def failures(self) -> list[str]:
        """Returns the reasons of engines that failed."""
        return [engine.failed.result() for engine in self._engines.values() if engine.failed.done()]

    async def serve(self, pinned: Mapping[PolicyId, Version]) -> ServedPolicies:
        """Builds engines that are missing and loads the versions. Raises: UnknownVersion; errors of the engine."""
        policies = ServedPolicies({policy: await self._policy_at(policy, pinned[policy]) for policy in pinned})
        for policy in policies:
            policies.set_version(policy, pinned[policy])
        return policies

    async def check(self) -> None:
        """Returns at once: only `serve` loads weights."""

    async def close(self) -> None:
        """Closes the engines and frees their resources."""
        engines, self._engines = self._engines, {}
        for policy, pinned in engines.items():
            log.info("pinned_engine_closed", policy=policy, version=pinned.version)
            pinned.failed.cancel()
            await pinned.served.close()

    async def _policy_at(self, policy: PolicyId, version: Version) -> ServedPolicy:
        engine = self._engines.get(policy)
        if engine is None:
            source, bases = self._new_source(policy), AdapterBases(self._new_source)
            served = await self._build(policy)
            failed = asyncio.create_task(served.engine.wait_failed())
            engine = _PinnedEngine(served=served, source=source, bases=bases, failed=failed)
            self._engines[policy] = engine
        if engine.version != version:
            engine.version = None
            await self._load(engine, version)
            engine.version = version
        return engine.served

    async def _load(self, pinned: _PinnedEngine, version: Version) -> None:
        """Fetches, swaps and measures as for training. Raises: UnknownVersion, InternalError, errors of the engine."""
        pulled = await pinned.source.pull_exact(version)
        self._counters.add("evaluation_bytes", pulled.stats.full_bytes + pulled.stats.delta_bytes)
        began_at, engine = self._clock.now(), pinned.served.engine
        weights = await pinned.bases.attach_base(pulled.weights)
        await engine.load(replace(weights, base=None, changes=None))
        mismatch = await measure_logprob_mismatch(engine, pulled.weights.manifest)
        if mismatch is not None and (excess := mismatch.excess(engine.logprob_tolerance)):
            raise InternalError(mismatch_message(pulled.weights.manifest, excess), code="weights.logprob_mismatch")
        pinned.source.commit(pulled.weights)
        self._counters.add("evaluation_loads")
        self._counters.add("evaluation_load_s", self._clock.now() - began_at)
        log.info("pinned_version_loaded", policy=pinned.served.policy, version=version)
