"""Stop condition of a run, evaluated by dataflow: the step that meets it, answers to peers, state after a restart."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.errors import RunComplete, UnknownNode
from astraflow.contract.ids import FlowId, NodeId, PolicyId, Version
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.reports.evaluations import EvaluationState
from astraflow.contract.reports.report import Report
from astraflow.dataflow.stop_condition import StopCondition, StopConfig
from tests.dataflow.running import Service, config, evaluation, facts, running
from tests.dataflow.test_service import assert_balanced, episode, step_of

SOLVER, VERIFIER = PolicyId("solver"), PolicyId("verifier")


def judged(condition: StopCondition, *rewards: float, policy: PolicyId = SOLVER, first: int = 1) -> list[int]:
    """Returns the steps that met a condition."""
    return [
        step
        for step, reward in enumerate(rewards, first)
        if condition.observe(policy, steps=step, reward=reward, at=7.0)
    ]


def test_the_mean_reward_of_a_full_window_completes_a_run_once() -> None:
    condition = StopCondition(StopConfig(reward=0.9, window_steps=4, steps=100), [SOLVER])
    assert judged(condition, 1.0, 1.0, 0.2, 1.0, 1.0, 1.0, 0.8, 1.0) == [7]
    assert condition.is_over
    assert condition.completion is not None
    assert condition.completion.has_learned
    assert judged(condition, 1.0, 1.0, first=9) == []


def test_every_policy_must_reach_the_reward() -> None:
    condition = StopCondition(StopConfig(reward=0.9, window_steps=2, steps=100), [SOLVER, VERIFIER])
    assert judged(condition, 1.0, 1.0, 1.0) == []
    assert judged(condition, 0.1, 1.0, 1.0, policy=VERIFIER) == [3]


def test_without_a_reward_the_run_ends_after_the_steps_of_every_policy() -> None:
    condition = StopCondition(StopConfig(steps=3), [SOLVER, VERIFIER])
    assert judged(condition, *[0.0] * 5) == []
    assert judged(condition, *[0.0] * 5, policy=VERIFIER) == [3]
    assert condition.completion is not None
    assert condition.completion.has_learned


def fallen(condition: StopCondition, *losses: float, rewards: float = 0.0) -> list[int]:
    """Returns the steps that met a condition on the loss."""
    return [
        step
        for step, loss in enumerate(losses, 1)
        if condition.observe(SOLVER, steps=step, reward=rewards, loss=loss, at=7.0)
    ]


def test_the_mean_loss_of_a_full_window_completes_a_run() -> None:
    condition = StopCondition(StopConfig(loss=0.5, window_steps=2, steps=100), [SOLVER])
    assert fallen(condition, 0.1, 1.2, 0.6, 0.4, 0.3) == [4]
    assert condition.completion is not None
    assert condition.completion.has_learned


def test_an_unknown_loss_reaches_no_target_also_after_a_restart() -> None:
    config = StopConfig(loss=0.5, window_steps=2, steps=100)
    condition = StopCondition(config, [SOLVER])
    assert fallen(condition, 0.1, math.nan) == []
    restored = StopCondition(config, [SOLVER])
    restored.load_state_dict(json.loads(json.dumps(condition.state_dict())))
    assert fallen(restored, 0.1) == []
    assert fallen(restored, 0.1) == [1]


def test_with_a_target_of_reward_and_of_loss_both_must_be_reached() -> None:
    condition = StopCondition(StopConfig(reward=0.9, loss=0.5, window_steps=1, steps=3), [SOLVER])
    assert fallen(condition, 0.1) == []
    assert fallen(condition, 0.6, rewards=1.0) == []
    assert fallen(condition, 0.1, rewards=1.0) == [1]


def test_the_step_limit_ends_a_run_that_did_not_learn() -> None:
    condition = StopCondition(StopConfig(reward=0.9, window_steps=2, steps=3), [SOLVER])
    assert judged(condition, 0.1, 0.1, 0.1) == [3]
    assert condition.is_over
    assert condition.completion is not None
    assert not condition.completion.has_learned


def test_fewer_steps_than_the_window_are_the_reason_then() -> None:
    condition = StopCondition(StopConfig(reward=0.1, window_steps=5, steps=2), [SOLVER])
    assert judged(condition, 0.9, 0.9) == [2]
    assert condition.completion is not None
    assert condition.completion.reason == "2 steps are done, fewer than the 5 of the mean reward"


def test_a_continued_run_can_learn_after_its_step_limit() -> None:
    condition = StopCondition(StopConfig(reward=0.9, window_steps=2, steps=3, then="continue"), [SOLVER])
    assert judged(condition, 0.1, 0.1, 0.1, 1.0, 1.0, 1.0) == [3, 5]
    assert not condition.is_over


def test_a_run_without_a_condition_does_not_end() -> None:
    assert judged(StopCondition(None, [SOLVER]), *[1.0] * 50) == []


@pytest.mark.long
@given(
    rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=30),
    window=st.integers(1, 6),
    steps=st.integers(1, 25),
    reward=st.sampled_from([None, 0.5, 0.9]),
    restarts=st.sets(st.integers(0, 30)),
)
def test_restarts_at_any_step_do_not_change_the_completion(
    rewards: list[float], window: int, steps: int, reward: float | None, restarts: set[int]
) -> None:
    chosen = StopConfig(reward=reward, window_steps=window, steps=steps)
    whole, broken = StopCondition(chosen, [SOLVER]), StopCondition(chosen, [SOLVER])
    for step, value in enumerate(rewards, 1):
        whole.observe(SOLVER, steps=step, reward=value, at=7.0)
        broken.observe(SOLVER, steps=step, reward=value, at=7.0)
        if step in restarts:
            state, broken = broken.state_dict(), StopCondition(chosen, [SOLVER])
            broken.load_state_dict(state)
            broken.resume({SOLVER: step}, at=9.0)
    assert broken.completion == whole.completion


def test_a_changed_condition_continues_or_ends_a_complete_run() -> None:
    first = StopCondition(StopConfig(steps=3), [SOLVER])
    judged(first, *[0.0] * 3)
    more = StopCondition(StopConfig(steps=5), [SOLVER])
    more.load_state_dict(first.state_dict())
    more.resume({SOLVER: 3}, at=9.0)
    assert more.completion is None
    assert judged(more, 0.0, 0.0, first=4) == [5]
    on = StopCondition(StopConfig(steps=3, then="continue"), [SOLVER])
    judged(on, *[0.0] * 3)
    ended = StopCondition(StopConfig(steps=3), [SOLVER])
    ended.load_state_dict(on.state_dict())
    assert ended.is_over


async def trained(service: Service, steps: int) -> None:
    """Simulates a run of that many steps from its first."""
    node = (await service.nodes.join(facts("producer"))).node
    trainer = service.trainer()
    await trainer.attach(version=Version(0), backend="local", is_simulated=False)
    for step in range(steps):
        tasks = [task for _ in range(2) for task in (await service.nodes.lease(node, 2, wait_s=2)).tasks]
        await service.nodes.push(node, [episode(task, version=0) for task in tasks])
        batch = await trainer.pull_batch(version=Version(step), wait_s=5)
        assert batch is not None
        await trainer.report_step(step_of(batch))


async def seen_complete(service: Service) -> Report:
    """Checks the answers to trainers, nodes and the control plane in a complete run."""
    with pytest.raises(RunComplete):
        await service.trainer().pull_batch(version=Version(2), wait_s=5)
    with pytest.raises(RunComplete):
        await service.nodes.join(facts("late"))
    report = await service.control.report()
    assert report.completion is not None
    assert report.completion.ends_run
    assert report.streams[0].training.steps == 2
    assert_balanced(report)
    return report


@pytest.mark.anyio
async def test_a_completed_run_stays_complete_after_a_restart(tmp_path: Path) -> None:
    chosen = config(max_staleness=4, stop=StopConfig(steps=2))
    async with running(tmp_path, chosen) as service:
        await trained(service, 2)
        heartbeat_reply = await service.nodes.heartbeat(
            NodeStatus(node=NodeId("producer.1"), running=(), versions={SOLVER: Version(1)})
        )
        assert heartbeat_reply.action == "leave"
        assert not (await service.nodes.lease(NodeId("producer.1"), 2, wait_s=0.1)).tasks
        before = await seen_complete(service)
    async with running(tmp_path, chosen) as service:
        assert (await seen_complete(service)).completion == before.completion
        with pytest.raises(UnknownNode):
            await service.nodes.lease(NodeId("producer.1"), 2, wait_s=0.1)
        # A trainer that crashed before its last version was in the store must be able to attach, to publish it again.
        welcome = await service.trainer().attach(version=Version(2), backend="local", is_simulated=False)
        assert welcome.acknowledged_steps == 2


@pytest.mark.long
@pytest.mark.anyio
async def test_a_waiting_trainer_ends_immediately_when_the_run_completes(tmp_path: Path) -> None:
    chosen = config(policies=("solver", "verifier"), stop=StopConfig(reward=0.0, window_steps=1))
    async with running(tmp_path, chosen) as service:
        node = (await service.nodes.join(facts("producer"))).node
        for policy in ("solver", "verifier"):
            trainer = service.trainer(policy)
            await trainer.attach(version=Version(0), backend="local", is_simulated=False)
            batch = None
            while batch is None:
                tasks = (await service.nodes.lease(node, 4, wait_s=2)).tasks
                await service.nodes.push(
                    node, [episode(task, policy=task.flow.removeprefix("train-")) for task in tasks]
                )
                batch = await trainer.pull_batch(version=Version(0), wait_s=0.2)
            await trainer.report_step(step_of(batch))
        for policy in ("solver", "verifier"):
            with pytest.raises(RunComplete):
                await service.trainer(policy).pull_batch(version=Version(1), wait_s=60)


@pytest.mark.long
@pytest.mark.anyio
async def test_nodes_finish_an_evaluation_round_before_they_are_told_to_leave(tmp_path: Path) -> None:
    chosen = config(max_staleness=4, stop=StopConfig(steps=1), evaluations={"held-out": evaluation()})
    async with running(tmp_path, chosen) as service:
        await trained(service, 0)
        await service.control.evaluate(FlowId("held-out"), actor="ada", reason="to know")
        await trained(service, 1)
        assert (await service.control.report()).completion is not None
        node = (await service.nodes.join(facts("evaluator"))).node
        status = NodeStatus(node=node, running=(), versions={SOLVER: Version(0)})
        assert (await service.nodes.heartbeat(status)).action == "continue_running"
        tasks = (await service.nodes.lease(node, 8, wait_s=2, evaluation_capacity=8)).tasks
        assert {task.flow for task in tasks} == {FlowId("held-out")}
        assert len(tasks) == 6
        await service.nodes.push(node, [episode(task) for task in tasks])
        (round_,) = await service.control.evaluations()
        assert round_.state is EvaluationState.DONE
        assert (await service.nodes.heartbeat(status)).action == "leave"
