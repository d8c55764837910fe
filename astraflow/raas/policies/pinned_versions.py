"""Versions to which tasks of an evaluation are pinned, on the engines that serve them."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from math import floor

from astraflow.contract.errors import UnknownVersion
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.nodes import EvaluationMode, FlowSpec
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.raas.counters import NodeCounters
from astraflow.raas.engines.base import Engine
from astraflow.raas.policies.evaluation_engines import EvaluationEngines
from astraflow.raas.policies.served_policies import ServedPolicies
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger

log = get_logger()

FIRST_BACKOFF_S = 2.0
MAX_BACKOFF_S = 60.0
"""Time without pinned tasks after an engine could not be built or loaded; doubles with each failure."""


class PinnedVersions:
    """Serves one set of pinned versions at a time to any number of tasks; prepares the engines on first use.

        closed ──task──► load ──► serve ──idle for `idle_s`──► closed
                          ▲ │       │
                          │ └failed─┼──► closed, back off
                          └─────────┘ task of other versions, once no task runs

    Tasks are admitted in order of arrival, so a task of other versions waits only for the tasks that run when it
    arrives.
    """

    def __init__(
        self,
        engines: EvaluationEngines,
        *,
        counters: NodeCounters,
        clock: Clock,
        idle_s: float,
    ) -> None:
        self._evaluation_engines = engines
        self._counters = counters
        self._clock = clock
        self._idle_s = idle_s
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
    def engines(self) -> Mapping[PolicyId, Engine]:
        """Engines that exist now besides those for training."""
        return self._evaluation_engines.engines

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
            await self._evaluation_engines.check()
        finally:
            self._count_user(-1)

    async def run(self) -> None:
        """Closes idle engines until cancelled."""
        while True:
            await self._became_idle.wait()
            self._became_idle.clear()
            # A sleep may end early: uvloop counts from the begin of the loop's turn, in milliseconds.
            while not self._users and (remaining_s := self._idle_since + self._idle_s - self._clock.now()) > 0:
                await self._clock.sleep(remaining_s)
            async with self._entry_lock:
                if not self._users and self._clock.now() >= self._idle_since + self._idle_s:
                    await self.close()

    async def close(self) -> None:
        """Ends the service of pinned versions and frees its resources."""
        self._served_versions = None
        await self._evaluation_engines.close()

    async def _policies_at(self, pinned: Mapping[PolicyId, Version]) -> ServedPolicies:
        failures = self._evaluation_engines.failures()
        if failures:
            await self._is_unused.wait()
            log.error("evaluation_engines_failed", reasons=failures)
            await self.close()
        if self._served_versions is None or self._served_versions[0] != pinned:
            await self._is_unused.wait()
            self._served_versions = None
            try:
                policies = await self._evaluation_engines.serve(pinned)
            except UnknownVersion as problem:
                raise RolloutFailed(
                    f"UnknownVersion: {problem}", boundary=Boundary.ENGINE, code="rollout.unknown_version"
                ) from problem
            except Exception as problem:
                await self._back_off(problem)
                raise RolloutFailed(
                    f"{type(problem).__name__}: {problem}", boundary=Boundary.ENGINE, code="rollout.engine_not_started"
                ) from problem
            self._backoff_s = FIRST_BACKOFF_S
            self._served_versions = (dict(pinned), policies)
        return self._served_versions[1]

    async def _back_off(self, problem: Exception) -> None:
        """Closes the engines and backs off: a partly loaded engine may be unusable and occupies memory."""
        self._counters.note_error(f"evaluation: {type(problem).__name__}: {problem}")
        log.error("evaluation_engines_failed", backoff_s=self._backoff_s, exc_info=problem)
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


def joint_mode(modes: Iterable[EvaluationMode]) -> EvaluationMode:
    """Returns the mode of a node whose engines have these modes: the one that restricts it most.

    >>> joint_mode([EvaluationMode.SECOND_ENGINE, EvaluationMode.RESERVED])
    <EvaluationMode.RESERVED: 'reserved'>
    """
    all_modes = set(modes)
    restricted = (mode for mode in (EvaluationMode.SERVED_VERSION, EvaluationMode.RESERVED) if mode in all_modes)
    return next(restricted, EvaluationMode.SECOND_ENGINE)
