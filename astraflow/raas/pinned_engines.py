"""Engines for tasks pinned to versions: a second engine for each policy, besides the engine that serves the newest
version."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from math import floor
from typing import Protocol

from astraflow.contract.errors import InternalError, UnknownVersion
from astraflow.contract.failures import Boundary, RolloutFailed
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.nodes import FlowSpec
from astraflow.raas.adapter_bases import AdapterBases
from astraflow.raas.counters import NodeCounters
from astraflow.raas.engines.base import Engine
from astraflow.raas.logprob_gap import gap_message, measure_logprob_gap
from astraflow.raas.served_policies import ServedPolicies, ServedPolicy
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.weights.puller import PulledVersion
from astraflow.weights.tensors import VerifiedWeights

log = get_logger()

FIRST_BACKOFF_S = 2.0
MAX_BACKOFF_S = 60.0
"""Time without pinned tasks after an engine could not be built or loaded; doubles with each failure."""


class VersionSource(Protocol):
    """Interface that fetches a version of the weights; see `astraflow.weights.puller.Puller`."""

    async def pull_exact(self, version: Version) -> PulledVersion:
        """Returns the version once it is published."""

    def commit(self, weights: VerifiedWeights) -> None:
        """Records that the engine serves these weights."""


@dataclass(slots=True, kw_only=True)
class _PinnedEngine:
    served: ServedPolicy
    source: VersionSource
    bases: AdapterBases
    failed: asyncio.Task[str]
    """Ends with the reason when the engine cannot be kept running."""
    version: Version | None = None
    """Version that is loaded and verified; None during a load or after a failed one."""


class PinnedEngines:
    """Serves one set of pinned versions at a time to any number of tasks; builds the engines on first use.

        closed ──task──► load ──► serve ──idle for `idle_s`──► closed
                          ▲ │       │
                          │ └failed─┼──► closed, back off
                          └─────────┘ task of other versions, once no task runs

    Tasks are admitted in order of arrival, so a task of other versions waits only for the tasks that run when it
    arrives. The engines for training are not affected.
    """

    def __init__(
        self,
        build: Callable[[PolicyId], Awaitable[ServedPolicy]],
        source: Callable[[PolicyId], VersionSource],
        *,
        counters: NodeCounters,
        clock: Clock,
        idle_s: float,
    ) -> None:
        """source: factory of a source without a committed version."""
        self._build = build
        self._new_source = source
        self._counters = counters
        self._clock = clock
        self._idle_s = idle_s
        self._engines: dict[PolicyId, _PinnedEngine] = {}
        self._served_versions: tuple[Mapping[PolicyId, Version], ServedPolicies] | None = None
        self._entry_lock = asyncio.Lock()
        self._users = 0
        self._is_unused = asyncio.Event()
        self._is_unused.set()
        self._became_idle = asyncio.Event()
        self._idle_since = 0.0
        self._backoff_s = FIRST_BACKOFF_S
        self._backoff_until = 0.0

    @property
    def is_backing_off(self) -> bool:
        """True while the node takes no pinned tasks after a failure."""
        return self._clock.now() < self._backoff_until

    @property
    def engines(self) -> dict[PolicyId, Engine]:
        """Engines that exist now."""
        return {policy: pinned.served.engine for policy, pinned in self._engines.items()}

    @asynccontextmanager
    async def use_versions(self, pinned: Mapping[PolicyId, Version]) -> AsyncIterator[ServedPolicies]:
        """Provides the policies at these versions while the block runs.

        Raises: RolloutFailed at the boundary `engine` when the versions cannot be served.
        """
        async with self._entry_lock:
            policies = await self._policies_at(pinned)
            self._count_user(1)
        try:
            yield policies
        finally:
            self._count_user(-1)

    async def run(self) -> None:
        """Closes idle engines until cancelled."""
        while True:
            await self._became_idle.wait()
            self._became_idle.clear()
            await self._clock.sleep(self._idle_s)
            async with self._entry_lock:
                if not self._users and self._clock.now() >= self._idle_since + self._idle_s:
                    await self.close()

    async def close(self) -> None:
        """Closes the engines and frees their resources."""
        engines, self._engines, self._served_versions = self._engines, {}, None
        for policy, pinned in engines.items():
            log.info("pinned_engine_closed", policy=policy, version=pinned.version)
            pinned.failed.cancel()
            await pinned.served.close()

    async def _policies_at(self, pinned: Mapping[PolicyId, Version]) -> ServedPolicies:
        failures = [engine.failed.result() for engine in self._engines.values() if engine.failed.done()]
        if failures:
            await self._is_unused.wait()
            log.error("pinned_engine_failed", reasons=failures)
            await self.close()
        if self._served_versions is None or self._served_versions[0] != pinned:
            await self._is_unused.wait()
            self._served_versions = None
            try:
                policies = ServedPolicies({policy: await self._policy_at(policy, pinned[policy]) for policy in pinned})
            except UnknownVersion as problem:
                raise RolloutFailed(
                    f"UnknownVersion: {problem}", boundary=Boundary.ENGINE, code="rollout.unknown_version"
                ) from problem
            except Exception as problem:
                await self._back_off(problem)
                raise RolloutFailed(
                    f"{type(problem).__name__}: {problem}", boundary=Boundary.ENGINE, code="rollout.engine_not_started"
                ) from problem
            for policy in policies:
                policies.set_serving(policy, True)
            self._backoff_s = FIRST_BACKOFF_S
            self._served_versions = (dict(pinned), policies)
        return self._served_versions[1]

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
        gap = await measure_logprob_gap(engine, pulled.weights.manifest)
        if gap is not None and (excess := gap.excess(engine.logprob_tolerance)):
            raise InternalError(gap_message(pulled.weights.manifest, excess), code="weights.logprob_gap")
        pinned.source.commit(pulled.weights)
        self._counters.add("evaluation_loads")
        self._counters.add("evaluation_load_s", self._clock.now() - began_at)
        log.info("pinned_version_loaded", policy=pinned.served.policy, version=version)

    async def _back_off(self, problem: Exception) -> None:
        """Closes the engines and backs off: a partly loaded engine may be unusable and occupies memory."""
        self._counters.note_error(f"evaluation: {type(problem).__name__}: {problem}")
        log.error("pinned_engine_failed", backoff_s=self._backoff_s, exc_info=problem)
        self._backoff_until = self._clock.now() + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)
        await self.close()

    def _count_user(self, change: int) -> None:
        self._users += change
        self._counters.set_gauge("evaluation_running", self._users)
        if self._users:
            self._is_unused.clear()
        else:
            self._idle_since = self._clock.now()
            self._is_unused.set()
            self._became_idle.set()


def evaluation_capacity(flows: Iterable[FlowSpec], capacity: int) -> int:
    """Returns the concurrent evaluation tasks of a node of this capacity; at least one if the run evaluates any flow.

    >>> spec = dict(id="held-out", workflow={}, reward={})
    >>> evaluation_capacity([FlowSpec(**spec, evaluation_share=0.25)], 10), evaluation_capacity([FlowSpec(**spec)], 10)
    (2, 0)
    """
    shares = [flow.evaluation_share for flow in flows if flow.evaluation_share is not None]
    return max(1, floor(max(shares) * capacity)) if shares else 0
