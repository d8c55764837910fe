"""Pinned tasks on a node whose only engine serves them: its weight loop waits, and follows afterwards."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from astraflow.contract.errors import UnknownVersion
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.nodes import EvaluationMode
from astraflow.contract.rollouts.failures import RolloutFailed
from astraflow.raas.counters import NodeCounters
from astraflow.raas.policies.evaluation_engines import RESERVED_IDLE_S, ReservedEngines
from astraflow.raas.policies.pinned_versions import PinnedVersions
from astraflow.raas.policies.served_policies import ServedPolicies
from astraflow.raas.policies.transfer_totals import TransferTotals
from astraflow.raas.policies.verification import MismatchGauges
from astraflow.raas.policies.weight_loop import WeightLoop
from astraflow.weights.tensors import VerifiedWeights
from astraflow.weights.transfer.puller import PulledVersion
from tests import make
from tests.errors import raises_code
from tests.fakes.clock import ManualClock, settle
from tests.fakes.engine import FakeEngine
from tests.raas.parts import SOLVER, serving
from tests.raas.policies.test_weight_loop import PROBE, stats

pytestmark = pytest.mark.anyio


class PublishedVersions:
    """Versions of one policy; each source of them follows the newest one."""

    def __init__(self, weights: Callable[[int], VerifiedWeights]) -> None:
        """weights: of a version."""
        self.weights = weights
        self.newest = -1
        self.changed = asyncio.Event()

    def publish(self, version: int) -> None:
        self.newest = version
        self.changed.set()
        self.changed = asyncio.Event()

    def source(self, policy: PolicyId) -> "Source":
        return Source(self)


class Source:
    def __init__(self, published: PublishedVersions) -> None:
        self._published = published
        self._committed = -1

    async def pull_newer(self) -> PulledVersion:
        while self._published.newest <= self._committed:
            await self._published.changed.wait()
        return self._pulled(self._published.newest)

    async def pull_exact(self, version: Version) -> PulledVersion:
        if version > self._published.newest:
            raise UnknownVersion(f"version {version} is not kept")
        return self._pulled(version)

    def commit(self, weights: VerifiedWeights) -> None:
        self._committed = weights.manifest.version

    def _pulled(self, version: int) -> PulledVersion:
        return PulledVersion(weights=self._published.weights(version), stats=stats(version, None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Engine that follows versions, and pinned tasks on it."""

    engine: FakeEngine
    published: PublishedVersions
    policies: ServedPolicies
    pinned: PinnedVersions
    counters: NodeCounters
    clock: ManualClock

    async def publish(self, version: int) -> None:
        self.published.publish(version)
        await settle()

    @asynccontextmanager
    async def at(self, version: int) -> AsyncIterator[None]:
        """Runs a task that is pinned to the version while the block runs."""
        async with self.pinned.use_versions({SOLVER: Version(version)}) as policies:
            assert policies[SOLVER].engine is self.engine
            yield

    @property
    def loads(self) -> list[int]:
        return [int(weights.manifest.version) for weights in self.engine.loads]


@asynccontextmanager
async def held(mode: EvaluationMode = EvaluationMode.RESERVED) -> AsyncIterator[Held]:
    """Serves version 0 with a weight loop that runs while the block runs."""
    engine, counters, clock = FakeEngine(), NodeCounters(), ManualClock()
    published = PublishedVersions(lambda version: make.verified_weights(version, probe=PROBE))
    engine.evaluation_mode = mode
    policies = serving(engine, is_ready=False)
    loop = WeightLoop(
        policies[SOLVER],
        published.source,
        policies,
        counters=counters,
        gauges=MismatchGauges(counters),
        transfers=TransferTotals(),
        clock=clock,
    )
    pinned = PinnedVersions(
        ReservedEngines(policies, {SOLVER: loop}), counters=counters, clock=clock, idle_s=RESERVED_IDLE_S
    )
    running = [asyncio.create_task(loop.run()), asyncio.create_task(pinned.run())]
    under_test = Held(
        engine=engine, published=published, policies=policies, pinned=pinned, counters=counters, clock=clock
    )
    await under_test.publish(0)
    try:
        yield under_test
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_the_served_version_is_held_without_a_load_and_the_newest_one_follows() -> None:
    async with held() as node:
        async with node.at(0), node.at(0):
            await node.publish(1)
            await node.publish(2)
            assert node.loads == [0], "the engine keeps the pinned version"
        await node.clock.pass_time(RESERVED_IDLE_S / 2)
        assert node.loads == [0], "further tasks of the round may come"
        await node.clock.pass_time(RESERVED_IDLE_S)
        assert node.loads[-1] == 2
        assert node.engine.version == 2


async def test_an_older_version_is_loaded_and_left_after_the_round_even_if_nothing_is_published() -> None:
    async with held() as node:
        await node.publish(1)
        await node.publish(2)
        async with node.at(1):
            assert (node.engine.version, node.policies.versions()) == (1, {SOLVER: 1})
        async with node.at(0):
            assert node.engine.version == 0
        await node.clock.pass_time(2 * RESERVED_IDLE_S)
        assert node.loads == [0, 1, 2, 1, 0, 2]
        assert node.counters.counters()["evaluation_loads"] == 2
        await node.publish(3)
        assert node.engine.version == 3


async def test_a_missing_version_does_not_keep_the_engine_from_following() -> None:
    async with held() as node:
        with raises_code(RolloutFailed, "rollout.unknown_version"):
            async with node.at(9):
                pass
        await node.publish(1)
        assert node.engine.version == 1


async def test_an_engine_that_fails_to_load_the_version_returns_to_training() -> None:
    async with held() as node:
        await node.publish(1)
        node.engine.load_problem = lambda weights: MemoryError("full") if weights.manifest.version == 0 else None
        with raises_code(RolloutFailed, "rollout.engine_not_started", "not served"):
            async with node.at(0):
                pass
        assert node.pinned.is_backing_off
        assert not node.policies.ready.is_set(), "its weights are unknown"
        await settle()
        assert node.engine.version == 1
        assert node.policies.ready.is_set()


async def test_a_server_of_another_party_serves_only_its_version() -> None:
    async with held(EvaluationMode.SERVED_VERSION) as node:
        await node.publish(1)
        with raises_code(RolloutFailed, "rollout.engine_not_started", "serves version 1"):
            async with node.at(0):
                pass
        assert node.loads == [0, 1]


async def test_a_task_on_a_server_that_was_refreshed_meanwhile_fails() -> None:
    async with held(EvaluationMode.SERVED_VERSION) as node:
        with raises_code(RolloutFailed, "rollout.version_not_held"):
            async with node.at(0):
                node.engine.score_error = lambda engine: 0.5
        with raises_code(RolloutFailed, "rollout.engine_not_started", "refreshed"):
            async with node.at(0):
                pass
        node.engine.score_error = lambda engine: 0.0
        await node.publish(1)
        assert node.engine.version == 1


async def test_a_server_of_another_party_that_disagrees_is_not_loaded_again() -> None:
    async with held(EvaluationMode.SERVED_VERSION) as node:
        node.engine.score_error = lambda engine: 0.5 if engine.version == 1 else 0.0
        await node.publish(1)
        assert node.loads == [0, 1]
        assert not node.policies.ready.is_set()
        await node.publish(2)
        assert node.loads == [0, 1, 2]
        assert node.policies.versions() == {SOLVER: 2}


async def test_tasks_that_end_together_share_the_check_of_a_server_of_another_party() -> None:
    async with held(EvaluationMode.SERVED_VERSION) as node:
        scored: list[int] = []

        def count(engine: FakeEngine) -> float:
            scored.append(1)
            return 0.0

        async with node.at(0):
            node.engine.score_error = count
        one_check = len(scored)
        begun, end = asyncio.Barrier(9), asyncio.Event()

        async def task() -> None:
            async with node.at(0):
                await begun.wait()
                await end.wait()

        tasks = [asyncio.create_task(task()) for _ in range(8)]
        await begun.wait()
        scored.clear()
        end.set()
        await asyncio.gather(*tasks)
        assert one_check <= len(scored) <= 2 * one_check


async def test_all_tasks_that_share_a_failed_check_fail() -> None:
    async with held(EvaluationMode.SERVED_VERSION) as node:
        begun, end = asyncio.Barrier(4), asyncio.Event()

        async def task() -> None:
            async with node.at(0):
                await begun.wait()
                await end.wait()

        tasks = [asyncio.create_task(task()) for _ in range(3)]
        await begun.wait()
        node.engine.score_error = lambda engine: 0.5
        end.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [getattr(outcome, "code", "") for outcome in outcomes] == ["rollout.version_not_held"] * 3
