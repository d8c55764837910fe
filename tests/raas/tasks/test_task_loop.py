import asyncio
from contextlib import suppress

import pytest

from astraflow.contract.ids import Version
from astraflow.contract.rollouts import partial_rollouts
from astraflow.contract.rollouts.failures import Boundary
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.raas.tasks.task_loop import CHECK_S, HUNG_S
from tests import make
from tests.fakes.clock import JumpingClock
from tests.fakes.dataflow import FakeDataflow
from tests.fakes.engine import FakeEngine
from tests.raas.parts import SOLVER, working

pytestmark = pytest.mark.anyio


async def test_leased_tasks_become_pushed_episodes() -> None:
    dataflow, engine = FakeDataflow(), FakeEngine(version=3)
    dataflow.add(make.task(group=group, member=member) for group in range(5) for member in range(4))

    async with working(dataflow, engine, slots=4):
        await dataflow.until(lambda: len(dataflow.episodes) == 20)

    assert {episode.trajectories[0].reward for episode in dataflow.episodes.values()} == {1.0}
    assert {episode.trajectories[0].oldest_version for episode in dataflow.episodes.values()} == {3}
    assert max(dataflow.asked) <= 4
    assert not dataflow.leased


@pytest.mark.long
async def test_many_episodes_are_pushed_in_few_calls() -> None:
    dataflow, engine = FakeDataflow(), FakeEngine(version=0)
    dataflow.add(make.task(group=group) for group in range(2000))

    async with working(dataflow, engine, slots=64):
        await dataflow.until(lambda: len(dataflow.episodes) == 2000)

    assert len(dataflow.pushes) < 500
    assert len(dataflow.asked) < 500


async def test_a_push_with_a_lost_reply_is_repeated() -> None:
    dataflow, engine = FakeDataflow(), FakeEngine(version=0)
    dataflow.lost_push_replies = 2
    dataflow.add(make.task(member=member) for member in range(3))

    async with working(dataflow, engine) as node:
        await dataflow.until(lambda: len(dataflow.episodes) == 3)
        await node.loop.wait_until_idle()

    assert dataflow.outcomes.count("accepted") == 3
    assert "duplicate" in dataflow.outcomes


async def test_an_unknown_node_rejoins_and_claims_its_tasks() -> None:
    dataflow, engine = FakeDataflow(), FakeEngine(version=0)
    engine.gate.clear()
    dataflow.add(make.task(member=member) for member in range(3))

    async with working(dataflow, engine) as node:
        await engine.until_requested(3)
        dataflow.forget()
        dataflow.notify()
        await dataflow.until(lambda: len(dataflow.joins) == 2)
        engine.gate.set()
        await node.loop.wait_until_idle()

    assert set(dataflow.joins[1].running) == {make.task(member=member).id for member in range(3)}
    assert len(dataflow.episodes) == 3
    assert {str(episode.node) for episode in dataflow.episodes.values()} == {"node.2"}


async def test_episodes_survive_an_outage_of_dataflow() -> None:
    dataflow, engine = FakeDataflow(), FakeEngine(version=0)
    engine.gate.clear()
    dataflow.add(make.task(member=member) for member in range(3))

    async with working(dataflow, engine) as node:
        await engine.until_requested(3)
        dataflow.refuse = _unreachable
        engine.gate.set()
        await asyncio.sleep(0.3)
        assert set(node.loop.held_tasks()) == {make.task(member=member).id for member in range(3)}
        dataflow.refuse = lambda episode: False
        await node.loop.wait_until_idle()

    assert len(dataflow.episodes) == 3


def _unreachable(episode: object) -> bool:
    raise ConnectionError("the disk of dataflow is on fire")


async def test_a_refused_episode_does_not_delay_the_others() -> None:
    dataflow, engine = FakeDataflow(), FakeEngine(version=0)
    bad = make.task(member=1).id
    dataflow.refuse = lambda episode: episode.task == bad and episode.failure is None
    dataflow.add(make.task(member=member) for member in range(3))

    async with working(dataflow, engine) as node:
        await dataflow.until(lambda: len(dataflow.episodes) == 3)
        await node.loop.wait_until_idle()

    failure = dataflow.episodes[bad].failure
    assert failure is not None
    assert failure.boundary is Boundary.WORKFLOW
    assert "refused by" in failure.message
    assert sum(episode.failure is None for episode in dataflow.episodes.values()) == 2


async def test_nothing_is_leased_before_every_policy_is_served() -> None:
    dataflow, engine = FakeDataflow(), FakeEngine(version=0)
    dataflow.add([make.task()])

    async with working(dataflow, engine, is_ready=False) as node:
        await asyncio.sleep(0.1)
        assert not dataflow.asked
        node.policies.set_version(SOLVER, Version(0))
        await dataflow.until(lambda: len(dataflow.episodes) == 1)
        node.policies.set_version(SOLVER, None)
        dataflow.add([make.task(group=1)])
        await dataflow.until(lambda: len(dataflow.episodes) == 2)  # the lease request that was already sent
        dataflow.add([make.task(group=2)])
        await asyncio.sleep(0.1)

    failure = dataflow.episodes[make.task(group=1).id].failure
    assert failure is not None
    assert failure.boundary is Boundary.ENGINE
    assert len(dataflow.queue) == 1


async def test_a_failing_engine_produces_failures_and_the_loop_continues() -> None:
    dataflow, engine = FakeDataflow(), FakeEngine(version=0)
    engine.problem = RuntimeError("broken")
    dataflow.add(make.task(member=member) for member in range(8))

    async with working(dataflow, engine, slots=2) as node:
        await dataflow.until(lambda: len(dataflow.episodes) == 8)
        engine.problem = None
        dataflow.add([make.task(group=1)])
        await dataflow.until(lambda: len(dataflow.episodes) == 9)

    failures = [episode.failure for episode in dataflow.episodes.values() if episode.failure]
    assert {(failure.boundary, failure.message) for failure in failures} == {(Boundary.ENGINE, "RuntimeError: broken")}
    assert node.counters.counters()["episodes_failed"] == 8
    assert node.counters.counters()["episodes_done"] == 1


async def test_after_leasing_stops_running_tasks_end_and_none_starts() -> None:
    dataflow, engine = FakeDataflow(), FakeEngine(version=0)
    engine.gate.clear()
    dataflow.add(make.task(member=member) for member in range(2))

    async with working(dataflow, engine) as node:
        await engine.until_requested(2)
        node.loop.stop_leasing()
        dataflow.add([make.task(group=1)])
        engine.gate.set()
        await node.loop.wait_until_idle()
        await asyncio.sleep(0.05)

    assert len(dataflow.episodes) == len(engine.requests) == 2


async def test_an_abandoned_task_has_no_result() -> None:
    dataflow, engine = FakeDataflow(), FakeEngine(version=0)
    engine.gate.clear()
    dataflow.add(make.task(member=member) for member in range(2))

    async with working(dataflow, engine) as node:
        await engine.until_requested(2)
        node.loop.stop_leasing()
        node.loop.cancel_running()
        await node.loop.wait_until_idle()

        assert node.loop.held_tasks() == ()
        assert node.capacity.used_slots == 0
    assert not dataflow.episodes


async def test_partial_rollouts_are_returned_and_continued_by_another_node() -> None:
    dataflow, engine, other = FakeDataflow(), FakeEngine(version=1), FakeEngine(version=2)
    engine.gate.clear()
    engine.begun = "dc"
    other.reply = "ba"
    dataflow.add(make.task(member=member) for member in range(3))

    async with working(dataflow, engine) as node:
        await engine.until_requested(3)
        node.loop.stop_leasing()
        await node.loop.hand_back()
        assert (node.loop.held_tasks(), node.capacity.used_slots) == ((), 0)
        assert node.counters.counters()["episodes_failed"] == 0
    assert not dataflow.episodes
    assert [partial.tokens for partial in dataflow.handed_back] == [2, 2, 2]
    async with working(dataflow, other):
        await dataflow.until(lambda: len(dataflow.episodes) == 3)

    for episode in dataflow.episodes.values():
        (trajectory,) = episode.trajectories
        assert (trajectory.reward, trajectory.oldest_version, episode.continued_tokens) == (1.0, 1, 2)
        assert [(span.version, span.length) for span in trajectory.spans[1:]] == [(1, 2), (2, 3)]


async def test_a_return_with_a_lost_reply_is_repeated() -> None:
    dataflow, engine = FakeDataflow(), FakeEngine(version=0)
    engine.gate.clear()
    engine.begun = "dc"
    dataflow.lost_hand_back_replies = 1
    dataflow.add(make.task(member=member) for member in range(2))

    async with working(dataflow, engine) as node:
        await engine.until_requested(2)
        node.loop.stop_leasing()
        await node.loop.hand_back()

    assert len(dataflow.handed_back) == len(dataflow.queue) == 2


async def test_partial_rollouts_are_held_until_dataflow_stores_them() -> None:
    dataflow, engine = FakeDataflow(), FakeEngine(version=0)
    engine.gate.clear()
    dataflow.add(make.task(member=member) for member in range(2))

    async with working(dataflow, engine) as node:
        await engine.until_requested(2)
        node.loop.stop_leasing()
        dataflow.forget()
        await node.loop.hand_back()

    assert set(dataflow.joins[1].running) == {make.task(member=member).id for member in range(2)}
    assert len(dataflow.handed_back) == 2


async def test_a_partial_rollout_above_the_limit_is_returned_without_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    dataflow, engine = FakeDataflow(), FakeEngine(version=0)
    engine.gate.clear()
    engine.begun = "dc"
    dataflow.add([make.task()])

    async with working(dataflow, engine) as node:
        await engine.until_requested(1)
        monkeypatch.setattr(partial_rollouts, "MAX_PARTIAL_ROLLOUT_BYTES", 15)
        node.loop.stop_leasing()
        await node.loop.hand_back()

    assert [partial.generations for partial in dataflow.handed_back] == [()]


async def test_a_refused_return_is_abandoned() -> None:
    dataflow, engine = FakeDataflow(), FakeEngine(version=0)
    engine.gate.clear()
    dataflow.add([make.task()])
    dataflow.refuses_hand_backs = True

    async with working(dataflow, engine) as node:
        await engine.until_requested(1)
        node.loop.stop_leasing()
        await node.loop.hand_back()
        assert node.loop.held_tasks() == ()

    assert dataflow.leased, "the task is returned when the node leaves"


async def test_a_running_task_is_not_started_twice_but_a_new_attempt_is() -> None:
    dataflow, engine = FakeDataflow(), FakeEngine(version=0)
    engine.gate.clear()
    dataflow.add([make.task(), make.task(), make.task(attempt=1)])

    async with working(dataflow, engine) as node:
        await dataflow.until(lambda: not dataflow.queue)
        await engine.until_requested(2)
        assert node.capacity.used_slots == 2
        engine.gate.set()
        await node.loop.wait_until_idle()

    assert sorted(engine.requests) == ["train:0/0.0.solver.0", "train:0/0.1.solver.0"]


@pytest.mark.long
async def test_a_full_outbox_stops_leasing() -> None:
    dataflow, engine = FakeDataflow(), FakeEngine(version=0)
    dataflow.refuse = _unreachable
    dataflow.add(make.task(group=group) for group in range(100))

    async with working(dataflow, engine, slots=2) as node:
        await engine.until_requested(8)
        await asyncio.sleep(0.1)
        assert len(node.loop.held_tasks()) == 8
        dataflow.refuse = lambda episode: False
        await dataflow.until(lambda: len(dataflow.episodes) == 100)


async def test_a_failing_engine_does_not_consume_all_tasks() -> None:
    dataflow, engine = FakeDataflow(), FakeEngine(version=0)
    engine.problem = RuntimeError("the server is gone")
    dataflow.add(make.task(group=group) for group in range(100))

    async with working(dataflow, engine, slots=4, break_after=8):
        await dataflow.until(lambda: len(dataflow.episodes) >= 8)
        await asyncio.sleep(0.2)
        assert len(dataflow.episodes) <= 12
        engine.problem = None
        await dataflow.until(lambda: len(dataflow.episodes) == 100)

    assert sum(episode.failure is not None for episode in dataflow.episodes.values()) <= 12


class StubbornEngine(FakeEngine):
    """Ends no request before `may_end`, whoever cancels it."""

    def __init__(self, version: int | None = None) -> None:
        super().__init__(version)
        self.may_end = asyncio.Event()

    async def generate(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        generation = await super().generate(request_id, prompt, sampling)
        while not self.may_end.is_set():
            with suppress(asyncio.CancelledError):
                await self.may_end.wait()
        return generation


async def test_an_episode_that_ignores_its_time_limit_is_given_up_and_its_task_fails() -> None:
    """The engine swallows its cancellation, as a workflow that hangs does."""
    dataflow, engine, clock = FakeDataflow(), StubbornEngine(version=0), JumpingClock()
    dataflow.add([make.task()])
    async with working(dataflow, engine, clock=clock, timeout_s=0.05) as node:
        await engine.until_requested(1)
        assert set(node.loop.held_tasks()) == {make.task().id}
        clock.jump(HUNG_S + 2 * CHECK_S)
        await dataflow.until(lambda: len(dataflow.episodes) == 1)
        await node.loop.wait_until_idle()
        assert (node.loop.held_tasks(), node.capacity.used_slots) == ((), 0)
        engine.may_end.set()

    (episode,) = dataflow.episodes.values()
    assert episode.failure is not None
    assert episode.failure.boundary is Boundary.ENGINE
    assert "time limit" in episode.failure.message
