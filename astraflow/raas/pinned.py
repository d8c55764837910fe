"""Engines for tasks that are pinned to versions: a second one for each policy, beside those that follow the newest."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from math import floor
from typing import Protocol

from astraflow.contract.errors import InternalError, UnknownVersion
from astraflow.contract.failures import Boundary
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.nodes import FlowSpec
from astraflow.raas.bases import Bases
from astraflow.raas.counters import NodeCounters
from astraflow.raas.gap import disagreement, too_far
from astraflow.raas.serving import ServedPolicies, ServedPolicy
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.weights.puller import Pulled
from astraflow.weights.tensors import VerifiedWeights
from astraflow.workflows.errors import RolloutBroke

log = get_logger()

FIRST_REST_S = 2.0
MAX_REST_S = 60.0
"""After an engine could not be built or loaded, the node takes no pinned task for this long, doubling each time."""


class Source(Protocol):
    """Where a version comes from; see `astraflow.weights.puller.Puller`."""

    async def exactly(self, version: Version) -> Pulled:
        """That version, once it is published."""

    def commit(self, weights: VerifiedWeights) -> None:
        """The engine serves these weights now."""


@dataclass(slots=True, kw_only=True)
class _Pinned:
    served: ServedPolicy
    source: Source
    bases: Bases
    version: Version | None = None
    """What is loaded and proven; None while that is in doubt."""


class PinnedEngines:
    """Serves one set of pinned versions at a time, to any number of tasks; made when first asked for.

        closed ──task──► load ──► serve ──nothing ran for `idle_s`──► closed
                          ▲ │       │
                          │ └failed─┼──► closed, rest
                          └─────────┘ a task of other versions, when nothing runs any more

    Tasks are let in in the order they come, so those of other versions wait for no more than what runs when they come.
    Nothing here touches the engines that training uses.
    """

    def __init__(
        self,
        build: Callable[[PolicyId], Awaitable[ServedPolicy]],
        source: Callable[[PolicyId], Source],
        *,
        counters: NodeCounters,
        clock: Clock,
        idle_s: float,
    ) -> None:
        """source: makes a source that has nothing committed yet."""
        self._build = build
        self._new_source = source
        self._counters = counters
        self._clock = clock
        self._idle_s = idle_s
        self._engines: dict[PolicyId, _Pinned] = {}
        self._serving: tuple[Mapping[PolicyId, Version], ServedPolicies] | None = None
        self._entry = asyncio.Lock()
        self._users = 0
        self._is_free = asyncio.Event()
        self._is_free.set()
        self._left = asyncio.Event()
        self._left_at = 0.0
        self._rest_s = FIRST_REST_S
        self._rest_until = 0.0

    @property
    def is_resting(self) -> bool:
        """Whether pinned tasks had better go to other nodes for now."""
        return self._clock.now() < self._rest_until

    @asynccontextmanager
    async def serving(self, pinned: Mapping[PolicyId, Version]) -> AsyncIterator[ServedPolicies]:
        """The policies at these versions while the block runs.

        Raises: RolloutBroke at the boundary `engine` when they cannot be had.
        """
        async with self._entry:
            policies = await self._at(pinned)
            self._count_user(1)
        try:
            yield policies
        finally:
            self._count_user(-1)

    async def run(self) -> None:
        """Close what is idle, until cancelled."""
        while True:
            await self._left.wait()
            self._left.clear()
            await self._clock.sleep(self._idle_s)
            async with self._entry:
                if not self._users and self._clock.now() >= self._left_at + self._idle_s:
                    await self.close()

    async def close(self) -> None:
        """Free what the engines hold."""
        engines, self._engines, self._serving = self._engines, {}, None
        for policy, pinned in engines.items():
            log.info("pinned_engine_closed", policy=policy, version=pinned.version)
            await pinned.served.close()

    async def _at(self, pinned: Mapping[PolicyId, Version]) -> ServedPolicies:
        if self._serving is None or self._serving[0] != pinned:
            await self._is_free.wait()
            self._serving = None
            try:
                policies = ServedPolicies({policy: await self._one_at(policy, pinned[policy]) for policy in pinned})
            except UnknownVersion as problem:
                raise RolloutBroke(Boundary.ENGINE, f"what is to be evaluated cannot be had: {problem}") from problem
            except Exception as problem:
                await self._give_up(problem)
                raise RolloutBroke(Boundary.ENGINE, f"{type(problem).__name__}: {problem}") from problem
            for policy in policies:
                policies.set_serving(policy, True)
            self._rest_s = FIRST_REST_S
            self._serving = (dict(pinned), policies)
        return self._serving[1]

    async def _one_at(self, policy: PolicyId, version: Version) -> ServedPolicy:
        engine = self._engines.get(policy)
        if engine is None:
            source, bases = self._new_source(policy), Bases(self._new_source)
            engine = _Pinned(served=await self._build(policy), source=source, bases=bases)
            self._engines[policy] = engine
        if engine.version != version:
            engine.version = None
            await self._load(engine, version)
            engine.version = version
        return engine.served

    async def _load(self, pinned: _Pinned, version: Version) -> None:
        """Fetch, swap, and measure as for training. Raises: UnknownVersion, InternalError, whatever breaks."""
        pulled = await pinned.source.exactly(version)
        self._counters.add("evaluation_bytes", pulled.stats.full_bytes + pulled.stats.delta_bytes)
        began, engine = self._clock.now(), pinned.served.engine
        weights = await pinned.bases.completed(pulled.weights)
        await engine.load(replace(weights, base=None, changes=None))
        gap = await disagreement(engine, pulled.weights.manifest)
        if gap is not None and gap > engine.logprob_tolerance:
            raise InternalError(too_far(pulled.weights.manifest, gap, engine.logprob_tolerance))
        pinned.source.commit(pulled.weights)
        self._counters.add("evaluation_loads")
        self._counters.add("evaluation_load_s", self._clock.now() - began)
        log.info("version_pinned", policy=pinned.served.policy, version=version)

    async def _give_up(self, problem: Exception) -> None:
        """What is half made may be broken for good, and takes memory: begin anew, some time later."""
        self._counters.note_error(f"evaluation: {type(problem).__name__}: {problem}")
        log.error("pinned_engine_failed", rest_s=self._rest_s, exc_info=problem)
        self._rest_until = self._clock.now() + self._rest_s
        self._rest_s = min(2 * self._rest_s, MAX_REST_S)
        await self.close()

    def _count_user(self, change: int) -> None:
        self._users += change
        self._counters.set_gauge("evaluation_running", self._users)
        if self._users:
            self._is_free.clear()
        else:
            self._left_at = self._clock.now()
            self._is_free.set()
            self._left.set()


def evaluation_capacity(flows: Iterable[FlowSpec], capacity: int) -> int:
    """Evaluation tasks that a node of this capacity takes at once: at least one where the run evaluates anything.

    >>> spec = dict(id="held-out", workflow={}, reward={})
    >>> evaluation_capacity([FlowSpec(**spec, evaluation_share=0.25)], 10), evaluation_capacity([FlowSpec(**spec)], 10)
    (2, 0)
    """
    shares = [flow.evaluation_share for flow in flows if flow.evaluation_share is not None]
    return max(1, floor(max(shares) * capacity)) if shares else 0
