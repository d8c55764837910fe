"""Engines for pinned versions: a second engine for each policy, or the engines for training, reserved meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from typing import Protocol

from astraflow.contract.errors import InternalError
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.raas.counters import NodeCounters
from astraflow.raas.engines.base import Engine
from astraflow.raas.engines.logprob_mismatch import measure_logprob_mismatch, mismatch_message
from astraflow.raas.policies.adapter_bases import AdapterBases, VersionSource
from astraflow.raas.policies.served_policies import ServedPolicies, ServedPolicy
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger

log = get_logger()

RESERVED_IDLE_S = 2.0
"""Time without pinned tasks after which reserved engines follow the newest versions again: longer than the pause
between the result of the last task and the next tasks."""


class EvaluationEngines(Protocol):
    """Serves one set of pinned versions at a time."""

    @property
    def engines(self) -> Mapping[PolicyId, Engine]:
        """Engines that exist now besides those for training."""

    def failures(self) -> list[str]:
        """Returns the reasons for which the versions are no longer served; empty while they are."""

    async def serve(self, pinned: Mapping[PolicyId, Version]) -> ServedPolicies:
        """Serves these versions instead of the previous ones. Raises: UnknownVersion; errors of the engine."""

    async def check(self) -> None:
        """Checks that the versions were served until now. Raises: RolloutFailed."""

    async def close(self) -> None:
        """Ends the service."""


@dataclass(slots=True, kw_only=True)
class _SecondEngine:
    served: ServedPolicy
    source: VersionSource
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
        source: Callable[[PolicyId], VersionSource],
        *,
        counters: NodeCounters,
        clock: Clock,
    ) -> None:
        """source: factory of a source without a committed version."""
        self._build = build
        self._new_source = source
        self._counters = counters
        self._clock = clock
        self._engines: dict[PolicyId, _SecondEngine] = {}

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
            engine = _SecondEngine(served=served, source=source, bases=bases, failed=failed)
            self._engines[policy] = engine
        if engine.version != version:
            engine.version = None
            await self._load(engine, version)
            engine.version = version
        return engine.served

    async def _load(self, pinned: _SecondEngine, version: Version) -> None:
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


class HoldableLoop(Protocol):
    """Interface that keeps a policy at chosen versions; see `astraflow.raas.policies.weight_loop.WeightLoop`."""

    def held(self) -> AbstractAsyncContextManager[Callable[[Version], Awaitable[None]]]:
        """Follows no newer version while the block runs; provides a function that serves a chosen version."""

    async def held_problem(self) -> str:
        """Returns why the held version is not served any more; empty while it is."""


@dataclass(slots=True, kw_only=True)
class _Hold:
    """Hold of one policy; closing `resources` ends it."""

    resources: AsyncExitStack
    serve: Callable[[Version], Awaitable[None]]
    version: Version | None = None
    """Version that is held; None during a load or after a failed one."""


class ReservedEngines:
    """Holds the weight loops of the pinned policies at their versions, so that no second engine is needed.

    An engine that serves the pinned version, which is usual when a round starts with the newest version, loads nothing.
    """

    engines: Mapping[PolicyId, Engine] = {}
    """None besides those for training."""

    def __init__(self, policies: ServedPolicies, loops: Mapping[PolicyId, HoldableLoop]) -> None:
        """policies: served for training. loops: keep each of them on the newest version."""
        self._policies = policies
        self._loops = loops
        self._holds: dict[PolicyId, _Hold] = {}
        self._failures: list[str] = []
        self._check_lock = asyncio.Lock()
        self._requested_checks = 0
        self._covered_checks = 0
        """Requests whose tasks had ended when the last check began."""

    def failures(self) -> list[str]:
        """Returns why the pinned versions are no longer served."""
        return self._failures

    async def serve(self, pinned: Mapping[PolicyId, Version]) -> ServedPolicies:
        """Holds the policies at these versions, and releases the others. Raises: UnknownVersion; errors of a load."""
        for policy in self._holds.keys() - pinned.keys():
            await self._release(policy)
        try:
            for policy, version in pinned.items():
                await self._hold(policy, version)
        except BaseException:
            await self.close()
            raise
        log.info("pinned_versions_held", versions=dict(pinned))
        return ServedPolicies({policy: self._policies[policy] for policy in pinned})

    async def check(self) -> None:
        """Checks that the held versions were served until now. Raises: RolloutFailed.

        Tasks that end during a check share the next one: with a server of another party it scores a whole probe.
        """
        self._requested_checks += 1
        number = self._requested_checks
        async with self._check_lock:
            if self._failures:
                raise _not_held(self._failures[0])
            if number > self._covered_checks:
                covered = self._requested_checks
                await self._check_held()
                self._covered_checks = covered

    async def close(self) -> None:
        """Releases all policies."""
        self._failures = []
        for policy in list(self._holds):
            await self._release(policy)

    async def _check_held(self) -> None:
        for policy in list(self._holds):
            if problem := await self._loops[policy].held_problem():
                self._failures = [problem]
                raise _not_held(problem)

    async def _hold(self, policy: PolicyId, version: Version) -> None:
        """Serves one version; a hold of another version goes on, so that no newer version is loaded in between."""
        if policy not in self._holds:
            resources = AsyncExitStack()
            serve = await resources.enter_async_context(self._loops[policy].held())
            self._holds[policy] = _Hold(resources=resources, serve=serve)
        hold = self._holds[policy]
        if hold.version != version:
            hold.version = None
            await hold.serve(version)
            hold.version = version

    async def _release(self, policy: PolicyId) -> None:
        hold = self._holds.pop(policy)
        log.info("pinned_version_released", policy=policy, version=hold.version)
        await hold.resources.aclose()


def _not_held(problem: str) -> RolloutFailed:
    return RolloutFailed(problem, boundary=Boundary.ENGINE, code="rollout.version_not_held")
