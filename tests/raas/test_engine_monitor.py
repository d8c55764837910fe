import asyncio

import pytest

from astraflow.contract.ids import PolicyId
from astraflow.raas.counters import NodeCounters
from astraflow.raas.drain_state import DrainState
from astraflow.raas.engine_monitor import EngineMonitor
from astraflow.raas.engines.base import EngineGauges
from astraflow.raas.tasks.capacity import Capacity
from astraflow.raas.tasks.lease_limit import FIRST_LIMIT, LeaseLimit
from tests.fakes.clock import ManualClock
from tests.fakes.engine import FakeEngine

pytestmark = pytest.mark.anyio


class Monitored:
    """Monitor of a solver's and a verifier's engine."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engines = {PolicyId(name): FakeEngine(version=1) for name in ("solver", "verifier")}
        self.pinned: dict[PolicyId, FakeEngine] = {}
        self.counters = NodeCounters()
        self.drain_state = DrainState(self.clock, hand_back_s=2.0)
        self.limit = LeaseLimit(1000)
        self.capacity = Capacity(self.limit.limit, self.clock)
        self.raises = 0
        self.monitor = EngineMonitor(
            self.engines,
            lambda: self.pinned,
            limit=self.limit,
            capacity=self.capacity,
            counters=self.counters,
            drain_state=self.drain_state,
            on_limit=self.count_raise,
            clock=self.clock,
        )

    def count_raise(self) -> None:
        self.raises += 1


async def test_the_load_of_all_engines_is_reported_and_limits_the_slots() -> None:
    node = Monitored()
    for _ in range(FIRST_LIMIT):
        node.capacity.acquire()
    solver, verifier = node.engines.values()
    solver.load_now = EngineGauges(running=9, cache_used=0.25)
    verifier.load_now = EngineGauges(running=7, cache_used=0.125)
    await node.monitor.observe()

    assert node.capacity.slots == 2 * FIRST_LIMIT
    assert node.raises == 1
    assert {name: node.counters.gauges()[name] for name in ("engine_running", "engine_waiting", "lease_limit")} == {
        "engine_running": 16,
        "engine_waiting": 0,
        "lease_limit": 2 * FIRST_LIMIT,
    }
    assert node.counters.gauges()["engine_cache_used"] == 0.25

    verifier.load_now = EngineGauges(running=4, waiting=12)
    for _ in range(3):
        await node.monitor.observe()
    assert node.capacity.slots < FIRST_LIMIT
    assert node.raises == 1


async def test_prompt_tokens_are_counted_as_they_grow_also_after_a_restart() -> None:
    node = Monitored()
    solver = node.engines[PolicyId("solver")]
    for prompts, cached, moves in ((100, 60, 1), (150, 90, 2), (0, 0, 2), (40, 10, 2)):  # the third: a server restarts
        solver.load_now = EngineGauges(
            prompt_tokens=prompts, cached_tokens=cached, prefix_moves=moves, lost_prefix_tokens=64 * moves
        )
        await node.monitor.observe()

    counted = node.counters.counters()
    assert (counted["prompt_tokens"], counted["prompt_tokens_cached"]) == (190, 100)
    assert (counted["prefix_moves"], counted["prefix_tokens_lost"]) == (2, 128)


async def test_accepted_drafts_are_counted_by_position() -> None:
    node = Monitored()
    solver = node.engines[PolicyId("solver")]
    for accepted in ((), (8, 5, 3), (20, 9, 8, 4)):  # the engine drafts up to four tokens
        solver.load_now = EngineGauges(drafts=sum(accepted[:1]) + 2, accepted_drafts=accepted, speculation_gain=1.2)
        await node.monitor.observe()

    counted = node.counters.counters()
    assert counted["drafts"] == 22
    assert [counted[f"drafts_accepted_{position}"] for position in (1, 2, 4, 8)] == [20, 9, 4, 0]
    assert node.counters.gauges()["speculation_gain"] == 1.2


async def test_restarts_of_all_engines_are_counted_once() -> None:
    node = Monitored()
    solver = node.engines[PolicyId("solver")]
    solver.load_now = EngineGauges(restarts=1)
    await node.monitor.observe()
    await node.monitor.observe()
    assert node.counters.counters()["engine_restarts"] == 1

    node.pinned = {PolicyId("solver"): FakeEngine(version=1)}
    node.pinned[PolicyId("solver")].load_now = EngineGauges(restarts=2)
    await node.monitor.observe()
    node.pinned = {PolicyId("solver"): FakeEngine(version=1)}
    await node.monitor.observe()
    solver.load_now = EngineGauges(restarts=3)
    await node.monitor.observe()
    assert node.counters.counters()["engine_restarts"] == 5


async def test_a_failed_engine_drains_the_node_with_the_reason() -> None:
    node = Monitored()
    watching = asyncio.create_task(node.monitor.drain_after_failure())
    await asyncio.sleep(0)
    assert not node.drain_state.draining.is_set()

    node.engines[PolicyId("verifier")].failure.put_nowait("the server failed 4 times")
    await watching

    assert node.drain_state.draining.is_set()
    assert node.drain_state.reason == "the engine of 'verifier' has failed: the server failed 4 times"
    assert node.counters.errors() == (node.drain_state.reason,)
    async with asyncio.timeout(1):
        await node.drain_state.wait_until_due()
