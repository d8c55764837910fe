"""Pinned tasks: separate engines, one set of versions at a time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from astraflow.contract.errors import UnknownVersion
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.weights import Probe
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.raas.counters import NodeCounters
from astraflow.raas.policies.evaluation_engines import SecondEngines
from astraflow.raas.policies.pinned_versions import PinnedVersions
from astraflow.raas.policies.recorder import RolloutRecorder
from astraflow.raas.policies.served_policies import ServedPolicy
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.weights.tensors import VerifiedWeights
from astraflow.weights.transfer.puller import PulledVersion, TransferStats
from tests import make
from tests.errors import raises_code
from tests.fakes.clock import ManualClock, settle
from tests.fakes.dataflow import FakeDataflow, flow
from tests.fakes.engine import FakeEngine
from tests.raas.parts import SOLVER, runner, serving, working

pytestmark = pytest.mark.anyio

IDLE_S = 60.0
PROBE = Probe(
    tokens=np.arange(4, dtype="<i4").tobytes(),
    lengths=(4,),
    scored_from=(2,),
    logprobs=np.full(2, -1.0, dtype="<f4").tobytes(),
)


class FakeShelf:
    """Source of the versions of one policy."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.problem: Callable[[Version], Exception | None] = lambda version: None
        self.asked: list[Version] = []
        self.committed: list[Version] = []

    async def pull_exact(self, version: Version) -> PulledVersion:
        self.asked.append(version)
        await self.gate.wait()
        if (problem := self.problem(version)) is not None:
            raise problem
        return PulledVersion(weights=make.verified_weights(version, probe=PROBE), stats=_stats(version))

    def commit(self, weights: VerifiedWeights) -> None:
        self.committed.append(weights.manifest.version)


def _stats(version: Version) -> TransferStats:
    return TransferStats(
        version=version,
        base=None,
        source="store",
        transfers=1,
        full_bytes=100,
        delta_bytes=10,
        shared_bytes=0,
        version_bytes=100,
        changed_elements=None,
        elements=50,
        fetch_s=1.0,
        decode_s=0.125,
        stage_s=0.5,
        verify_s=0.25,
        resumes=0,
        versions_behind=0,
        fallbacks=0,
    )


@dataclass(slots=True, kw_only=True)
class PinnedVersionsUnderTest:
    """Engines under test, and their dependencies."""

    clock: Clock
    counters: NodeCounters = field(default_factory=NodeCounters)
    shelf: FakeShelf = field(default_factory=FakeShelf)
    engines: list[FakeEngine] = field(default_factory=list)
    build_problem: Exception | None = None
    pinned: PinnedVersions = field(init=False)

    def __post_init__(self) -> None:
        second = SecondEngines(self._build, lambda policy: self.shelf, counters=self.counters, clock=self.clock)
        self.pinned = PinnedVersions(second, counters=self.counters, clock=self.clock, idle_s=IDLE_S)

    async def _build(self, policy: PolicyId) -> ServedPolicy:
        if self.build_problem is not None:
            raise self.build_problem
        self.engines.append(FakeEngine())
        return ServedPolicy(policy, self.engines[-1], ByteTokenizer())

    @asynccontextmanager
    async def at(self, version: int) -> AsyncIterator[Version | None]:
        """Yields the version that is served while the block runs."""
        async with self.pinned.use_versions({SOLVER: Version(version)}) as policies:
            yield policies.versions().get(SOLVER)


async def test_tasks_of_one_version_share_an_engine_loaded_once() -> None:
    bench = PinnedVersionsUnderTest(clock=ManualClock())
    assert bench.engines == [], "engines are built on demand"
    async with bench.at(3) as first, bench.at(3) as second:
        assert (first, second) == (3, 3)
        assert bench.counters.gauges()["evaluation_running"] == 2
    async with bench.at(3):
        pass
    assert [len(engine.loads) for engine in bench.engines] == [1]
    assert (bench.shelf.asked, bench.shelf.committed) == ([3], [3])
    counter_values = bench.counters.counters()
    assert (
        counter_values["evaluation_loads"],
        counter_values["evaluation_bytes"],
        counter_values["weight_bytes_full"],
    ) == (1, 110, 0)
    assert bench.counters.gauges()["evaluation_running"] == 0


async def test_other_versions_are_loaded_when_idle_in_the_order_of_requests() -> None:
    bench = PinnedVersionsUnderTest(clock=ManualClock())
    served: list[int] = []

    async def work(version: int) -> None:
        async with bench.at(version) as engine:
            served.append(engine or -1)

    async with bench.at(1):
        waiting = [asyncio.create_task(work(version)) for version in (2, 1, 2)]
        await settle()
        assert served == []
        assert bench.shelf.asked == [1], "running tasks are not affected"
    await asyncio.gather(*waiting)
    assert served == [2, 1, 2]
    assert len(bench.engines) == 1
    assert [weights.base for weights in bench.engines[0].loads] == [None] * 4


async def test_a_cancelled_wait_does_not_block_others() -> None:
    bench = PinnedVersionsUnderTest(clock=ManualClock())
    async with bench.at(1):
        waiting = asyncio.create_task(bench.at(2).__aenter__())
        await settle()
        waiting.cancel()
        await settle()
        async with bench.at(1) as engine:
            assert engine == 1
    bench.shelf.gate.clear()
    loading = asyncio.create_task(bench.at(4).__aenter__())
    await settle()
    loading.cancel()
    await settle()
    bench.shelf.gate.set()
    async with bench.at(1) as engine:
        assert engine == 1
    assert bench.counters.gauges()["evaluation_running"] == 0


async def test_a_failed_engine_is_replaced() -> None:
    bench = PinnedVersionsUnderTest(clock=ManualClock())
    async with bench.at(1):
        bench.engines[0].failure.put_nowait("it ended 4 times")
        await settle()
    async with bench.at(1) as version:
        assert version == 1

    assert [engine.is_closed for engine in bench.engines] == [True, False]


async def test_an_idle_engine_is_closed_and_rebuilt_on_demand() -> None:
    clock = ManualClock()
    bench = PinnedVersionsUnderTest(clock=clock)
    closing = asyncio.create_task(bench.pinned.run())
    async with bench.at(1):
        await clock.pass_time(2 * IDLE_S)
    await clock.pass_time(IDLE_S / 2)
    async with bench.at(1):
        pass
    await clock.pass_time(IDLE_S * 0.75)
    assert not bench.engines[0].is_closed, "the engine was used recently"
    await clock.pass_time(IDLE_S * 1.5)
    assert bench.engines[0].is_closed
    async with bench.at(1) as engine:
        assert engine == 1
    assert len(bench.engines) == 2
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)


class HastyClock(ManualClock):
    """Clock whose long sleeps end a millisecond early, as timers of uvloop may."""

    async def sleep(self, duration_s: float) -> None:
        await super().sleep(duration_s - 0.001 if duration_s > 0.002 else duration_s)


async def test_an_idle_engine_is_closed_also_when_sleeps_end_early() -> None:
    clock = HastyClock()
    bench = PinnedVersionsUnderTest(clock=clock)
    closing = asyncio.create_task(bench.pinned.run())
    async with bench.at(1):
        pass
    await clock.pass_time(1.5 * IDLE_S)
    assert bench.engines[0].is_closed
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)


async def test_a_missing_version_fails_only_its_tasks() -> None:
    bench = PinnedVersionsUnderTest(clock=ManualClock())
    bench.shelf.problem = lambda version: UnknownVersion("version 1 is not kept") if version == 1 else None
    for _ in range(2):
        with raises_code(RolloutFailed, "rollout.unknown_version", "UnknownVersion") as broke:
            async with bench.at(1):
                pass
        assert broke.value.boundary is Boundary.ENGINE
    assert not bench.pinned.is_backing_off, "another version may be stored"
    async with bench.at(2) as engine:
        assert engine == 2


async def test_a_node_that_cannot_build_an_engine_backs_off_from_evaluations() -> None:
    clock = ManualClock()
    bench = PinnedVersionsUnderTest(clock=clock, build_problem=MemoryError("full"))
    rests = []
    for _ in range(7):
        with raises_code(RolloutFailed, "rollout.engine_not_started", "MemoryError"):
            async with bench.at(1):
                pass
        began = clock.now()
        while bench.pinned.is_backing_off:
            clock.advance(1.0)
        rests.append(clock.now() - began)
    assert rests == [2, 4, 8, 16, 32, 60, 60]
    assert "MemoryError: full" in bench.counters.errors()[-1]
    bench.build_problem = None
    async with bench.at(1) as engine:
        assert engine == 1


async def test_an_engine_with_a_logprob_mismatch_serves_no_evaluation() -> None:
    bench = PinnedVersionsUnderTest(clock=ManualClock())
    async with bench.at(1):
        bench.engines[0].score_error = lambda engine: 0.5
    with raises_code(RolloutFailed, "rollout.engine_not_started", "'solver' version 2"):
        async with bench.at(2):
            pass
    assert bench.engines[0].is_closed
    assert bench.shelf.committed == [1]
    assert bench.pinned.is_backing_off


async def test_pinned_tasks_use_their_version_beside_training_tasks() -> None:
    bench = PinnedVersionsUnderTest(clock=SystemClock())
    dataflow, newest = FakeDataflow(flows=(flow(), flow("held-out", evaluation_share=0.25))), FakeEngine(version=9)
    dataflow.add([make.task(), make.task(flow="held-out", pinned=4), make.task(group=1)])
    async with working(dataflow, newest, pinned=bench.pinned, evaluation_capacity=2) as node:
        await dataflow.until(lambda: len(dataflow.episodes) == 3)
        await node.loop.wait_until_idle()
    written = {task: episode.trajectories[0].oldest_version for task, episode in dataflow.episodes.items()}
    assert written == {"train:0/0": 9, "held-out:0/0": 4, "train:1/0": 9}
    assert dataflow.episodes[make.task(flow="held-out").id].trajectories[0].answer == "dcba"
    assert newest.loads == []
    assert set(dataflow.asked_for_evaluations) == {2}
    assert node.counters.counters()["evaluation_episodes"] == 1


async def test_failing_evaluations_do_not_pause_training() -> None:
    bench = PinnedVersionsUnderTest(clock=SystemClock())
    bench.shelf.problem = lambda version: UnknownVersion("version 4 is not kept")
    dataflow, newest = FakeDataflow(flows=(flow(), flow("held-out", evaluation_share=0.25))), FakeEngine(version=9)
    dataflow.add(make.task(flow="held-out", group=group, pinned=4) for group in range(6))
    async with working(dataflow, newest, pinned=bench.pinned, break_after=2):
        await dataflow.until(lambda: len(dataflow.episodes) == 6)
        dataflow.add(make.task(group=group) for group in range(8))
        await dataflow.until(lambda: len(dataflow.episodes) == 14)
    failures = [episode.failure for episode in dataflow.episodes.values() if episode.failure is not None]
    assert {failure.boundary for failure in failures} == {Boundary.ENGINE}
    assert len(failures) == 6
    assert max(dataflow.asked[-2:]) > 1, "a node with an open breaker tries one task at a time"


async def test_an_episode_times_out_while_it_waits_for_its_versions() -> None:
    bench = PinnedVersionsUnderTest(clock=SystemClock())
    bench.shelf.gate.clear()
    dataflow, newest = FakeDataflow(), FakeEngine(version=9)
    run = runner(dataflow, serving(newest), bench.counters, pinned=bench.pinned, timeout_s=0.05)
    episode = await run.run(make.task(pinned=4), RolloutRecorder())
    assert episode.failure is not None
    assert episode.failure.boundary is Boundary.ENGINE
    assert "0.05 s" in episode.failure.message
