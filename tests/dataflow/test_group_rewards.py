"""Group rewards change the rewards of finished groups before the filters, concurrently with the service."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.batches import Batch
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, Version
from astraflow.contract.reports.queries import TrajectoryQuery
from astraflow.contract.reports.report import Report
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.tasks import Group, Prompt, Task
from astraflow.contract.rollouts.trajectories import Episode, Trajectory
from astraflow.dataflow.admission.group_scoring import GROUP_REWARD_FAILED, TERM, GroupScoring
from astraflow.dataflow.admission.limits import ResultLimits
from astraflow.dataflow.config import DataflowConfig, FlowConfig, GroupRewardConfig
from astraflow.dataflow.flow import Flow
from astraflow.dataflow.operations.group_scorer import GroupScorer
from astraflow.dataflow.operations.nodes import NodeOperations
from astraflow.rewards import group_rewards
from astraflow.rewards.base import GroupMember
from astraflow.runtime.config.base import Config
from tests import make
from tests.dataflow.kills import KilledFiles
from tests.dataflow.running import Service, config, facts, opened, running
from tests.errors import raises_code

LIMITS = ResultLimits(reward_range=(-1000, 1000))
pytestmark = pytest.mark.anyio
FLOW = "train-solver"


class NoOptions(Config):
    """Options of a reward that has none."""


@group_rewards.register("test_length", options=NoOptions)
class Length:
    """Scores the length of the text. A test can delay it with `gate` or make it fail with `faults`."""

    gate: asyncio.Event | None = None
    faults: list[Any] = []  # noqa: RUF012
    asked: list[list[GroupMember]] = []  # noqa: RUF012
    running = most = 0

    def __init__(self, options: NoOptions) -> None: ...

    async def scores(self, prompt: Prompt, members: Sequence[GroupMember]) -> Sequence[float]:
        Length.asked.append(list(members))
        Length.running += 1
        Length.most = max(Length.most, Length.running)
        try:
            if Length.gate is not None:
                await Length.gate.wait()
        finally:
            Length.running -= 1
        if Length.faults:
            fault = Length.faults.pop(0)
            if isinstance(fault, Exception):
                raise fault
            return list(fault)
        return [len(member.text) for member in members]


@pytest.fixture(autouse=True)
def _reset() -> None:
    Length.gate, Length.faults, Length.asked, Length.running, Length.most = None, [], [], 0, 0


def compared(*, filters: tuple[dict[str, Any], ...] = ({"kind": "keep_all"},), **options: Any) -> DataflowConfig:
    """Returns a run with one flow that has a group reward; a batch has two groups of two episodes."""
    base = config(max_staleness=3)
    reward = GroupRewardConfig(reward={"kind": "test_length"}, **options)
    flow = base.flows[FLOW].model_copy(update={"group_reward": reward, "filters": filters})
    return base.model_copy(update={"flows": {FLOW: flow}})


def completed(task: Task, *, text: str | None = None, is_sampled: bool = False, **fields: Any) -> Episode:
    """Returns the result of a task, by default with a text of one or three letters."""
    trajectory = replace(
        make.trajectory(reward=float(task.member)),
        prompt_text="?",
        completion_text="x" * (1 + 2 * task.member) if text is None else text,
        span_s=(0.0, 1.0) if is_sampled else (),
        **fields,
    )
    return Episode(task=task.id, node=NodeId("any"), trajectories=(trajectory,))


async def produce(service: Service, groups: int, result: Callable[[Task], Episode] = completed) -> None:
    node = (await service.nodes.join(facts("producer"))).node
    lease = await service.nodes.lease(node, 2 * groups, wait_s=2)
    outcomes = await service.nodes.push(node, [result(task) for task in lease.tasks])
    assert "late" not in outcomes


async def batch_of(service: Service) -> Batch:
    trainer = service.trainer()
    await trainer.attach(version=Version(0), backend="test", is_simulated=True)
    batch = await trainer.pull_batch(version=Version(0), wait_s=10.0)
    assert batch is not None
    return batch


async def until(service: Service, condition: Callable[[Report], bool]) -> Report:
    async with asyncio.timeout(20):
        while not condition(report := await service.control.report()):  # noqa: ASYNC110 (over the network)
            await asyncio.sleep(0.02)
    return report


async def holds(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (the scorer sends no notification)
            await asyncio.sleep(0.01)


def assert_balanced(report: Report) -> None:
    for flow in report.flows:
        assert flow.issued == flow.open + flow.admitted + sum(flow.dropped.values())


async def test_rewards_are_changed_before_training_and_the_score_is_a_term(tmp_path: Path) -> None:
    async with running(tmp_path, compared(weight=0.5, base_weight=2.0)) as service:
        await produce(service, 2)
        batch = await batch_of(service)
        report = await service.control.report()

    rewards = {row.task.rpartition("/")[2]: row.trajectory.reward for row in batch.rows}
    assert rewards == {"0": 0.5, "1": 2 + 1.5}
    assert {row.trajectory.reward_terms[TERM] for row in batch.rows} == {1, 3}
    assert report.streams[0].reward_produced == pytest.approx(2.0)
    assert_balanced(report)


async def test_the_filters_see_the_new_rewards(tmp_path: Path) -> None:
    def equal(task: Task) -> Episode:
        return completed(task, text="same")

    run = compared(filters=({"kind": "informative"},), base_weight=0.0)
    async with running(tmp_path, run) as service:
        await produce(service, 1, equal)
        report = await until(service, lambda report: bool(report.flows[0].dropped))
    assert report.flows[0].dropped == {"informative": 1}
    assert_balanced(report)


async def test_a_slow_group_reward_blocks_nothing_and_its_concurrency_is_bounded(tmp_path: Path) -> None:
    Length.gate = asyncio.Event()
    async with running(tmp_path, compared(concurrency=2)) as service:
        await produce(service, 4)
        await holds(lambda: Length.running == 2)
        report = await service.control.report()
        assert (report.flows[0].open, report.flows[0].admitted) == (4, 0)
        Length.gate.set()
        await until(service, lambda report: report.flows[0].admitted == 4)
    assert Length.most == 2


async def test_a_failure_is_tried_again_and_then_the_group_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astraflow.dataflow.operations.group_scorer.FIRST_PAUSE_S", 0.001)
    Length.faults = [ValueError("broken"), [1.0], *[[math.nan, 0.0]] * 2]
    async with running(tmp_path, compared(attempts=2, concurrency=1)) as service:
        await produce(service, 3)
        report = await until(service, lambda report: report.flows[0].admitted == 1)
        metrics = report.flows[0].plugins

    assert report.flows[0].dropped == {GROUP_REWARD_FAILED: 2}
    assert metrics["group_reward.failed_attempts"] == 4
    assert (metrics["group_reward.dropped"], metrics["group_reward.scored"]) == (2, 1)
    assert_balanced(report)


async def test_a_group_that_takes_too_long_and_a_reward_out_of_range_are_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astraflow.dataflow.operations.group_scorer.FIRST_PAUSE_S", 0.001)
    async with running(tmp_path, compared(weight=1e6, attempts=1)) as service:
        await produce(service, 1)
        await until(service, lambda report: report.flows[0].dropped == {GROUP_REWARD_FAILED: 1})
    Length.gate = asyncio.Event()
    scoring = GroupScoring(
        GroupRewardConfig(reward={"kind": "test_length"}, timeout_s=0.01),
        limits=LIMITS,
    )
    with pytest.raises(TimeoutError):
        await scoring.scored(group_of(completed(make.task(member=0)), completed(make.task(member=1))))


def group_of(*episodes: Episode) -> Group:
    return Group(id=GroupId("train:0"), flow=FlowId("train"), prompt=make.prompt(), episodes=episodes)


async def test_failed_members_are_left_out_and_a_group_of_them_is_not_asked_about(tmp_path: Path) -> None:
    def failed(task: Task) -> Episode:
        failure = Failure(boundary=Boundary.WORKFLOW, message="defect")
        return Episode(task=task.id, node=NodeId("any"), trajectories=(), failure=failure)

    async with running(tmp_path, compared()) as service:
        await produce(service, 1, failed)
        report = await until(service, lambda report: bool(report.flows[0].dropped))
        assert report.flows[0].dropped == {"failed": 1}
        await produce(service, 1, lambda task: failed(task) if task.member else completed(task))
        report = await until(service, lambda report: report.flows[0].dropped["failed"] == 2)
    assert [len(members) for members in Length.asked] == [1]
    assert_balanced(report)


async def test_texts_of_sampled_groups_alone_are_kept(tmp_path: Path) -> None:
    def sampled(task: Task) -> Episode:
        return completed(task, is_sampled=task.group.endswith(":1"))

    async with running(tmp_path, compared()) as service:
        await produce(service, 2, sampled)
        batch = await batch_of(service)
        page = await service.control.trajectories(TrajectoryQuery())
    assert {row.trajectory.completion_text for row in batch.rows if row.group.endswith(":0")} == {""}
    assert {sample.group for sample in page.trajectories} == {f"{FLOW}:1"}
    assert {sample.reward for sample in page.trajectories} == {1.0, 4.0}


async def test_groups_are_compared_by_policy_and_role() -> None:
    def two_roles(member: int) -> Episode:
        def trajectory_of(role: str, policy: str = "solver") -> Trajectory:
            text = f"{role}{policy}{member}"
            return replace(make.trajectory(policy=policy), role=role, completion_text=text)

        trajectories = (trajectory_of("first"), trajectory_of("second"), trajectory_of("", "verifier"))
        return Episode(task=make.task(member=member).id, node=NodeId("any"), trajectories=trajectories)

    group = group_of(two_roles(0), two_roles(1))
    everything = GroupScoring(GroupRewardConfig(reward={"kind": "test_length"}), limits=LIMITS)
    await everything.scored(group)
    assert [len(members) for members in Length.asked] == [2, 2, 2]
    assert {member.text[:6] for member in Length.asked[1]} == {"second"}

    chosen = GroupRewardConfig(reward={"kind": "test_length"}, policies=("verifier",), base_weight=0.5)
    first, _ = await GroupScoring(chosen, limits=LIMITS).scored(group)
    assert [bool(trajectory.reward_terms) for trajectory in first.trajectories] == [False, False, True]
    assert first.trajectories[0].reward == 1


async def test_rewards_of_turns_are_weighted_with_the_reward() -> None:
    trajectory = replace(make.trajectory(reward=2.0), turn_rewards=(2.0,), completion_text="xxx")
    episode = Episode(task=make.task().id, node=NodeId("any"), trajectories=(trajectory,))
    options = GroupRewardConfig(reward={"kind": "test_length"}, base_weight=0.5)
    (scored,) = await GroupScoring(options, limits=LIMITS).scored(group_of(episode))
    assert (scored.trajectories[0].reward, scored.trajectories[0].turn_rewards) == (4.0, (1.0,))


async def test_a_stop_before_scoring_loses_nothing_and_scores_again(tmp_path: Path) -> None:
    Length.gate = asyncio.Event()
    async with running(tmp_path, compared()) as service:
        await produce(service, 2)
        await holds(lambda: Length.running == 2)
    Length.gate = None
    async with running(tmp_path, compared()) as service:
        batch = await batch_of(service)
        report = await service.control.report()
    assert {row.trajectory.reward for row in batch.rows} == {1.0, 4.0}
    assert len({row.task for row in batch.rows}) == 4
    assert_balanced(report)


async def test_the_new_rewards_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, compared()) as service:
        await produce(service, 2)
        await until(service, lambda report: report.flows[0].admitted == 2)
    comparisons_before = len(Length.asked)
    async with running(tmp_path, compared()) as service:
        batch = await batch_of(service)
        assert_balanced(await service.control.report())
    assert {row.trajectory.reward for row in batch.rows} == {1.0, 4.0}
    assert {row.trajectory.reward_terms[TERM] for row in batch.rows} == {1.0, 3.0}
    assert len(Length.asked) == comparisons_before


async def test_groups_that_waited_are_admitted_unscored_once_the_recipe_has_no_group_reward(tmp_path: Path) -> None:
    Length.gate = asyncio.Event()
    async with running(tmp_path, compared()) as service:
        await produce(service, 2)
    async with running(tmp_path, config(max_staleness=3)) as service:
        batch = await batch_of(service)
        assert_balanced(await service.control.report())
    assert {row.trajectory.reward for row in batch.rows} == {0.0, 1.0}
    assert not any(row.trajectory.completion_text for row in batch.rows)


async def test_memory_of_results_is_returned_after_rescoring(tmp_path: Path) -> None:
    async with opened(tmp_path, compared(weight=1e-3)) as (run, journal):
        nodes = NodeOperations(run)
        node = nodes.membership.join(facts()).id
        lease = await nodes.leasing.lease(node, 4, versions={}, wait_s=0)
        await nodes.results.push(node, [completed(task, text="x" * 10_000) for task in lease.tasks])
        pushed_bytes = run.held_bytes
        scoring = asyncio.create_task(GroupScorer(run, nodes.results).work())
        await holds(lambda: run.flows[lease.tasks[0].flow].counts.admitted == 2)
        scoring.cancel()
        await asyncio.gather(scoring, return_exceptions=True)
        await journal.wait_durable()
        assert run.held_bytes < pushed_bytes / 10
        assert len(journal.rows("select * from payloads")) == 2


async def test_a_flow_of_the_datasets_answers_refuses_a_group_reward(tmp_path: Path) -> None:
    flow = FlowConfig(
        dataset={"kind": "letters"},
        workflow={"kind": "dataset_answers"},
        group_reward=GroupRewardConfig(reward={"kind": "diversity"}),
    )
    with raises_code(InvalidInput, "flow.group_reward_without_rollout"):
        async with running(tmp_path, config().model_copy(update={"flows": {"train": flow}})):
            pass


async def test_nodes_are_asked_for_the_texts_of_such_flows_alone(tmp_path: Path) -> None:
    async with running(tmp_path / "with", compared()) as service:
        (spec,) = (await service.nodes.join(facts())).flows
        assert spec.attaches_texts
    async with running(tmp_path / "without") as service:
        (spec,) = (await service.nodes.join(facts())).flows
        assert not spec.attaches_texts


def _is_settled(flow: Flow) -> bool:
    return not any(group.is_complete for group in flow.open_groups.values())


@pytest.mark.long
async def test_a_kill_at_any_point_of_a_commit_loses_and_repeats_nothing(tmp_path: Path) -> None:
    folder, copies = tmp_path / "run", tmp_path / "copies"
    copies.mkdir()
    async with opened(folder, compared()) as (run, journal):
        journal._files = files = KilledFiles(folder, copies)
        nodes = NodeOperations(run)
        node = nodes.membership.join(facts()).id
        lease = await nodes.leasing.lease(node, 4, versions={}, wait_s=0)
        for task in lease.tasks:
            await nodes.results.push(node, [completed(task)])
        scoring = asyncio.create_task(GroupScorer(run, nodes.results).work())
        await holds(lambda: run.flows[lease.tasks[0].flow].counts.admitted == 2)
        scoring.cancel()
        await asyncio.gather(scoring, return_exceptions=True)
        await journal.wait_durable()

    outcomes = set()
    for kill in files.kills:
        async with opened(kill.folder, compared()) as (run, _):
            flow, stream = run.flows[lease.tasks[0].flow], run.streams[PolicyId("solver")]
            scoring = asyncio.create_task(GroupScorer(run, NodeOperations(run).results).work())
            complete = [group for group in flow.open_groups.values() if group.is_complete]
            await holds(partial(_is_settled, flow))
            scoring.cancel()
            await asyncio.gather(scoring, return_exceptions=True)
            assert flow.issued == len(flow.open_groups) + flow.counts.admitted
            buffered = stream.untrained_groups()
            assert len(set(buffered)) == len(list(buffered)) == flow.counts.admitted
            outcomes.add((len(complete), flow.counts.admitted))
    assert {(0, 0), (0, 2)} <= outcomes
    assert any(complete for complete, _ in outcomes)
