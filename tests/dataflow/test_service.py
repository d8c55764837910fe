"""The whole dataflow role over real gRPC, as a node, a trainer and a page use it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.batches import Batch, StepReport
from astraflow.contract.batching import BatchingFacts
from astraflow.contract.errors import InvalidInput, RunComplete, UnknownNode, UnknownPolicy
from astraflow.contract.ids import FlowId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import render
from astraflow.contract.reports.queries import EventQuery, GroupQuery, TrajectoryQuery
from astraflow.contract.reports.report import NodeState, Report
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.contract.weight_reports import WeightsReport
from astraflow.dataflow import service as service_module
from astraflow.dataflow.operations import control_servicer as servicer_module
from astraflow.dataflow.stop_condition import StopConfig
from tests import make
from tests.dataflow.running import Service, config, facts, running
from tests.errors import raises_code

pytestmark = pytest.mark.anyio


def episode(task: Task, *, version: int = 0, policy: str = "solver") -> Episode:
    """Returns a result whose reward differs between the members of a group."""
    trajectory = make.trajectory(policy=policy, version=version, reward=float(task.member % 2))
    return Episode(task=task.id, node=NodeId("any"), trajectories=(trajectory,))


def with_text(episode: Episode, text: str) -> Episode:
    """Adds the texts that a node sends for a sampled group."""
    (trajectory,) = episode.trajectories
    return replace(episode, trajectories=(replace(trajectory, prompt_text="reverse", completion_text=text),))


def step_of(batch: Batch) -> StepReport:
    return StepReport(
        batch=batch.id,
        policy=batch.policy,
        version=Version(batch.version + 1),
        wait_s=0.5,
        compute_s=1.5,
        publish_s=0.0,
        metrics={"loss": 0.25},
    )


async def produce(service: Service, groups: int, *, version: int = 0) -> None:
    """Joins, leases and pushes that many groups of two."""
    node = (await service.nodes.join(facts("producer"))).node
    lease = await service.nodes.lease(node, 2 * groups, wait_s=2)
    assert len(lease.tasks) == 2 * groups
    outcomes = await service.nodes.push(node, [episode(task, version=version) for task in lease.tasks])
    assert set(outcomes) == {"accepted"}


def assert_balanced(report: Report) -> None:
    for flow in report.flows:
        assert flow.issued == flow.open + flow.admitted + sum(flow.dropped.values())
    for stream in report.streams:
        spread = stream.groups.accounted
        assert stream.groups.admitted == spread


async def test_a_group_travels_from_lease_to_acknowledged_batch(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await produce(service, 2)
        trainer = service.trainer()
        batching = BatchingFacts(batching="rows", largest_difference=1e-6, reasons="not packed: a layer", costs="time")
        welcome = await trainer.attach(version=Version(0), backend="local", is_simulated=False, batching=batching)
        batch = await trainer.pull_batch(version=Version(0), wait_s=2)
        assert batch is not None
        assert welcome.acknowledged_steps == 0
        assert len(batch.rows) == 4
        assert [row.group for row in batch.rows] == sorted(row.group for row in batch.rows)
        assert await trainer.report_step(step_of(batch))
        assert not await trainer.report_step(step_of(batch))
        report = await service.control.report()
        stream = report.streams[0]
        assert (stream.groups.trained, stream.training.steps, stream.version, stream.groups.buffered) == (2, 1, 1, 0)
        assert stream.training.wait_fraction == pytest.approx(0.25)
        assert stream.training.metrics["loss"] == pytest.approx(0.25)
        assert stream.training.reward_mean == pytest.approx(0.5)
        assert stream.batching == batching
        assert_balanced(report)


async def test_the_gate_stops_issuing_at_the_staleness_bound(tmp_path: Path) -> None:
    async with running(tmp_path, config(batch_groups=2, max_staleness=1)) as service:
        node = (await service.nodes.join(facts())).node
        lease = await service.nodes.lease(node, 100, wait_s=1)
        assert len(lease.tasks) == (0 + 1 + 1) * 2 * 2
        assert (await service.nodes.lease(node, 1, wait_s=0.05)).tasks == ()


async def test_a_node_with_old_weights_gets_only_tasks_within_the_staleness_bound(tmp_path: Path) -> None:
    solver = PolicyId("solver")
    async with running(tmp_path, config(batch_groups=1, max_staleness=1, group_size=1)) as service:
        node = (await service.nodes.join(facts())).node
        await service.trainer().attach(version=Version(1), backend="local", is_simulated=False)
        behind = await service.nodes.lease(node, 100, wait_s=0, versions={solver: Version(0)})
        assert len(behind.tasks) == 1, "begun with version 0, a group is too old for all but the next batch"
        waiting = asyncio.create_task(service.nodes.lease(node, 100, wait_s=10, versions={solver: Version(0)}))
        await asyncio.sleep(0.05)
        await service.nodes.heartbeat(NodeStatus(node=node, running=(), versions={solver: Version(1)}))
        assert len((await waiting).tasks) == (1 + 1) * 1 - len(behind.tasks)


async def test_a_node_with_old_weights_does_not_age_tasks_of_other_nodes(tmp_path: Path) -> None:
    solver = PolicyId("solver")
    async with running(tmp_path, config(batch_groups=1, max_staleness=2, group_size=3)) as service:
        swift, behind = [(await service.nodes.join(facts(name))).node for name in ("swift", "behind")]
        await service.trainer().attach(version=Version(1), backend="local", is_simulated=False)
        versions = {swift: {solver: Version(1)}, behind: {solver: Version(0)}}
        assignment = await service.nodes.lease(swift, 8, wait_s=0, versions=versions[swift])
        assert [task.id for task in assignment.tasks][-2:] == ["train-solver:2/0", "train-solver:2/1"]
        waiting = asyncio.create_task(service.nodes.lease(behind, 8, wait_s=10, versions=versions[behind]))
        await asyncio.sleep(0.05)
        assert not waiting.done(), "with version 0, group 2 would be too old for batch 2"
        await service.nodes.heartbeat(NodeStatus(node=behind, running=(), versions=versions[swift]))
        assert [task.id for task in (await waiting).tasks] == ["train-solver:2/2"]


async def test_a_directory_has_one_service_at_a_time(tmp_path: Path) -> None:
    async with running(tmp_path):
        with raises_code(InvalidInput, "journal.in_use"):
            async with running(tmp_path):
                raise AssertionError("it was let in")
    async with running(tmp_path) as service:
        assert (await service.control.report()).flows


@pytest.mark.parametrize("reports", ["lease", "heartbeat"])
async def test_a_version_that_no_trainer_has_made_does_not_age_the_tasks_of_other_nodes(
    reports: str, tmp_path: Path
) -> None:
    """Tasks issued for it would be too old for every other node, for ever."""
    async with running(tmp_path) as service:
        await service.trainer().attach(version=Version(0), backend="local", is_simulated=False)
        bad = (await service.nodes.join(facts("bad"))).node
        impossible = {PolicyId("solver"): Version(10**6)}
        if reports == "heartbeat":
            status = NodeStatus(node=bad, running=(), versions=impossible)
            await service.nodes.heartbeat(status)
            assert (await service.control.report()).nodes[0].versions == {PolicyId("solver"): 1}
        assert len((await service.nodes.lease(bad, 8, wait_s=0, versions=impossible)).tasks) == 8
        await service.nodes.leave(bad, reason="done")
        good = (await service.nodes.join(facts("good"))).node

        lease = await service.nodes.lease(good, 8, wait_s=5, versions={PolicyId("solver"): Version(1)})

        assert len(lease.tasks) == 8


async def test_a_waiting_lease_wakes_when_the_trainer_advances(tmp_path: Path) -> None:
    async with running(tmp_path, config(max_staleness=0)) as service:
        await produce(service, 2)
        node = (await service.nodes.join(facts("other"))).node
        waiting = asyncio.create_task(service.nodes.lease(node, 4, wait_s=10))
        trainer = service.trainer()
        batch = await trainer.pull_batch(version=Version(0), wait_s=2)
        assert batch is not None
        await trainer.report_step(step_of(batch))
        assert len((await waiting).tasks) == 4


async def test_a_batch_is_redelivered_until_acknowledged_across_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await produce(service, 3)
        first = await service.trainer().pull_batch(version=Version(0), wait_s=2)
        again = await service.trainer().pull_batch(version=Version(0), wait_s=2)
    async with running(tmp_path) as service:
        after = await service.trainer().pull_batch(version=Version(0), wait_s=2)
        assert first is not None and again is not None and after is not None
        assert (first.is_redelivered, again.is_redelivered, after.is_redelivered) == (False, True, True)
        assert first.id == again.id == after.id
        assert [row.task for row in first.rows] == [row.task for row in after.rows]
        assert all(
            (a.trajectory.tokens == b.trajectory.tokens).all() for a, b in zip(first.rows, after.rows, strict=True)
        )
        assert await service.trainer().report_step(step_of(after))
        report = await service.control.report()
        assert report.streams[0].groups.buffered == 1
        assert report.streams[0].training.redelivered == 2
        assert_balanced(report)


async def test_the_next_batch_is_served_before_the_previous_acknowledgement(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await produce(service, 4)
        trainer = service.trainer()
        first = await trainer.pull_batch(version=Version(0), wait_s=2)
        second = await trainer.pull_batch(version=Version(1), wait_s=2, unacknowledged=1)
        assert first is not None and second is not None
        assert not {row.group for row in first.rows} & {row.group for row in second.rows}
        third = await trainer.pull_batch(version=Version(2), wait_s=0, unacknowledged=2)
        assert third is not None and third.id == first.id  # only one acknowledgement may be delayed
        with raises_code(InvalidInput, "batch.not_open"):
            await trainer.report_step(step_of(second))
    async with running(tmp_path) as service:  # a crash of the trainer before its checkpoint, and of the service
        trainer = service.trainer()
        again = await trainer.pull_batch(version=Version(0), wait_s=2)
        assert again is not None and (again.id, again.is_redelivered) == (first.id, True)
        following = await trainer.pull_batch(version=Version(1), wait_s=2, unacknowledged=1)
        assert following is not None and (following.id, following.is_redelivered) == (second.id, True)
        assert await trainer.report_step(step_of(first))
        same = await trainer.pull_batch(version=Version(1), wait_s=2, unacknowledged=1)
        assert same is not None and same.id == second.id  # the acknowledgement was on its way
        assert await trainer.report_step(step_of(second))
        assert_balanced(await service.control.report())


@pytest.mark.long
async def test_no_batch_is_served_beyond_the_last_step_of_a_run(tmp_path: Path) -> None:
    async with running(tmp_path, config(stop=StopConfig(steps=1))) as service:
        await produce(service, 4)
        trainer = service.trainer()
        first = await trainer.pull_batch(version=Version(0), wait_s=2)
        assert first is not None
        assert await trainer.pull_batch(version=Version(1), wait_s=0, unacknowledged=1) is None
        assert await trainer.report_step(step_of(first))
        with pytest.raises(RunComplete):
            await trainer.pull_batch(version=Version(1), wait_s=0)


async def test_a_restart_loses_no_result_and_repeats_no_group(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        node = (await service.nodes.join(facts())).node
        lease = await service.nodes.lease(node, 4, wait_s=1)
        await service.nodes.push(node, [episode(task) for task in lease.tasks[:3]])
        before = await service.control.report()
    async with running(tmp_path) as service:
        report = await service.control.report()
        assert report.flows[0].issued == before.flows[0].issued == 2
        assert report.sequence > before.sequence
        with pytest.raises(UnknownNode):
            await service.nodes.push(node, [episode(lease.tasks[3])])
        node = (await service.nodes.join(facts(running=(lease.tasks[3].id,)))).node
        outcomes = await service.nodes.push(node, [episode(task) for task in lease.tasks])
        assert outcomes == ("late", "late", "duplicate", "accepted")
        more = await service.nodes.lease(node, 100, wait_s=1)
        assert {task.group for task in more.tasks}.isdisjoint({task.group for task in lease.tasks})
        assert_balanced(await service.control.report())


async def test_unclaimed_tasks_are_leased_again_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "GRACE_S", 0.5)
    async with running(tmp_path) as service:
        node = (await service.nodes.join(facts())).node
        lost = await service.nodes.lease(node, 8, wait_s=1)
    async with running(tmp_path) as service:
        node = (await service.nodes.join(facts())).node
        again = await service.nodes.lease(node, 8, wait_s=5)
        assert {task.id for task in again.tasks} == {task.id for task in lost.tasks}


async def test_leaving_returns_tasks_immediately(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        first = (await service.nodes.join(facts("first"))).node
        second = (await service.nodes.join(facts("second"))).node
        held = await service.nodes.lease(first, 8, wait_s=1)
        assert await service.nodes.leave(first, reason="done") == 8
        assert {task.id for task in (await service.nodes.lease(second, 8, wait_s=1)).tasks} == {
            task.id for task in held.tasks
        }
        with pytest.raises(UnknownNode):
            await service.nodes.lease(first, 1, wait_s=0)


async def test_a_restarted_node_replaces_its_earlier_process(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        first = (await service.nodes.join(facts("same"))).node
        await service.nodes.lease(first, 8, wait_s=1, versions={PolicyId("solver"): Version(0)})
        second = (await service.nodes.join(facts("same"))).node
        assert first != second
        assert len((await service.nodes.lease(second, 8, wait_s=1)).tasks) == 8
        states = {node.id: node.state for node in (await service.control.report()).nodes}
        assert states == {first: NodeState.GONE, second: NodeState.JOINING}


async def test_a_silent_node_is_lost_and_its_late_result_still_counts_once(tmp_path: Path) -> None:
    async with running(tmp_path, config(lease_s=0.5)) as service:
        quiet = (await service.nodes.join(facts("quiet"))).node
        lease = await service.nodes.lease(quiet, 8, wait_s=1)
        await asyncio.sleep(1.2)
        with pytest.raises(UnknownNode):
            await service.nodes.push(quiet, [episode(lease.tasks[0])])
        back = (await service.nodes.join(facts("quiet"))).node
        assert await service.nodes.push(back, [episode(lease.tasks[0])] * 2) == ("accepted", "duplicate")
        report = await service.control.report()
        assert report.flows[0].leases_expired == 8
        assert_balanced(report)


async def test_heartbeats_renew_leases(tmp_path: Path) -> None:
    async with running(tmp_path, config(lease_s=0.6)) as service:
        node = (await service.nodes.join(facts())).node
        lease = await service.nodes.lease(node, 2, wait_s=1)
        for _ in range(6):
            await asyncio.sleep(0.2)
            directive = await service.nodes.heartbeat(
                NodeStatus(node=node, running=(lease.tasks[0].id,), versions={PolicyId("solver"): Version(0)})
            )
            assert directive.action == "continue_running"
        report = await service.control.report()
        assert report.flows[0].leases_expired == 1
        assert report.flows[0].tasks_leased == 1
        assert report.nodes[0].state is NodeState.READY


async def test_infrastructure_failures_are_retried_then_masked(tmp_path: Path) -> None:
    async with running(tmp_path, config(group_size=3, batch_groups=1, max_attempts=2)) as service:
        node = (await service.nodes.join(facts())).node
        lease = await service.nodes.lease(node, 3, wait_s=1)
        broken = Episode(
            task=lease.tasks[0].id,
            node=node,
            trajectories=(),
            failure=Failure(boundary=Boundary.ENGINE, message="out of memory"),
        )
        assert await service.nodes.push(node, [broken]) == ("retried",)
        again = await service.nodes.lease(node, 1, wait_s=1)
        assert (again.tasks[0].id, again.tasks[0].attempt) == (broken.task, 1)
        assert await service.nodes.push(node, [broken]) == ("superseded",), "a repeated push is not a second failure"
        last = replace(broken, attempt=1)
        outcomes = await service.nodes.push(node, [last, *(episode(task) for task in lease.tasks[1:])])
        assert outcomes == ("failed_engine", "accepted", "accepted")
        batch = await service.trainer().pull_batch(version=Version(0), wait_s=2)
        assert batch is not None
        assert [row.task for row in batch.rows] == [task.id for task in lease.tasks[1:]]


async def test_a_push_that_repeats_its_tasks_counts_each_once(tmp_path: Path) -> None:
    async with running(tmp_path, config(group_size=2, batch_groups=1)) as service:
        node = (await service.nodes.join(facts())).node
        first, second = (await service.nodes.lease(node, 2, wait_s=1)).tasks
        failure = Failure(boundary=Boundary.ENGINE, message="out of memory")
        broken = Episode(task=first.id, node=node, trajectories=(), failure=failure)
        again = episode(first)
        outcomes = await service.nodes.push(node, [broken, again, again, episode(second), again, again])
        assert outcomes == ("retried", "accepted", "duplicate", "accepted", "late", "late")
        report = await service.control.report()
        assert report.flows[0].tasks_queued == report.flows[0].tasks_leased == 0
        assert_balanced(report)
    async with running(tmp_path, config(group_size=2, batch_groups=1)) as service:
        batch = await service.trainer().pull_batch(version=Version(0), wait_s=2)
        assert batch is not None
        assert [row.task for row in batch.rows] == [first.id, second.id]


async def test_filtered_groups_are_replaced_by_new_ones(tmp_path: Path) -> None:
    async with running(tmp_path, config(filters=("informative",), max_staleness=0)) as service:
        node = (await service.nodes.join(facts())).node
        lease = await service.nodes.lease(node, 100, wait_s=1)
        dull = [Episode(task=task.id, node=node, trajectories=(make.trajectory(reward=1.0),)) for task in lease.tasks]
        await service.nodes.push(node, dull)
        report = await service.control.report()
        assert report.flows[0].dropped == {"informative": 2}
        assert report.streams[0].issue_headroom == 2
        assert_balanced(report)


async def test_rows_beyond_the_staleness_bound_are_never_served(tmp_path: Path) -> None:
    async with running(tmp_path, config(batch_groups=1, max_staleness=1)) as service:
        node = (await service.nodes.join(facts())).node
        lease = await service.nodes.lease(node, 4, wait_s=1)
        await service.nodes.push(node, [episode(task, version=0) for task in lease.tasks])
        trainer = service.trainer()
        await trainer.attach(version=Version(2), backend="local", is_simulated=False)
        assert await trainer.pull_batch(version=Version(2), wait_s=0.1) is None
        report = await service.control.report()
        assert report.streams[0].groups.dropped == {"stale": 2}
        assert_balanced(report)


async def test_one_stalled_trainer_does_not_stop_the_other_policy(tmp_path: Path) -> None:
    async with running(tmp_path, config(policies=("a", "b"), max_staleness=0)) as service:
        node = (await service.nodes.join(facts())).node
        for version in range(3):
            lease = await service.nodes.lease(node, 100, wait_s=1)
            results = [episode(t, version=version, policy=t.flow.removeprefix("train-")) for t in lease.tasks]
            await service.nodes.push(node, results)
            batch = await service.trainer("a").pull_batch(version=Version(version), wait_s=2)
            assert batch is not None
            await service.trainer("a").report_step(step_of(batch))
        streams = {stream.policy: stream for stream in (await service.control.report()).streams}
        assert streams[PolicyId("a")].training.steps == 3
        assert streams[PolicyId("b")].groups.buffered == 2


async def test_foreign_results_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        node = (await service.nodes.join(facts())).node
        lease = await service.nodes.lease(node, 2, wait_s=1)
        foreign = [episode(lease.tasks[0]), episode(lease.tasks[1], policy="stranger")]
        with pytest.raises(InvalidInput) as caught:
            await service.nodes.push(node, foreign)
        assert caught.value.code == "episode.unknown_policy"
        for name in ("train-solver:99/0", "train-solver:0/9", "elsewhere:0/0", "nonsense"):
            unknown = Episode(task=TaskId(name), node=node, trajectories=(make.trajectory(),))
            assert await service.nodes.push(node, [unknown]) == ("unknown",)
        with pytest.raises(UnknownPolicy) as refused:
            await service.trainer("stranger").pull_batch(version=Version(0), wait_s=0)
        assert refused.value.code == "policy.unknown"
        report = await service.control.report()
        assert report.flows[0].tasks_leased == 2
        assert_balanced(report)


async def test_the_report_can_be_watched_and_its_history_survives_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await produce(service, 2)
        sequences = []
        async for report in service.control.watch_report():
            sequences.append(report.sequence)
            if len(sequences) == 3:
                break
        assert sequences == list(range(sequences[0], sequences[0] + 3))
    async with running(tmp_path) as service:
        history = await service.control.history()
        assert [report.sequence for report in history] == sorted({report.sequence for report in history})
        assert set(sequences) <= {report.sequence for report in history}
        kinds = [event.kind.value for event in (await service.control.report()).events]
        assert "node_joined" in kinds


async def test_nodes_can_be_drained_and_flows_paused(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        node = (await service.nodes.join(facts())).node
        await service.control.pause_flow(FlowId("train-solver"), is_paused=True, actor="ada", reason="looking")
        assert (await service.nodes.lease(node, 2, wait_s=0.05)).tasks == ()
        await service.control.pause_flow(FlowId("train-solver"), is_paused=False, actor="ada", reason="seen")
        assert len((await service.nodes.lease(node, 2, wait_s=1)).tasks) == 2
        await service.control.drain_node(node, actor="ada", reason="maintenance")
        directive = await service.nodes.heartbeat(NodeStatus(node=node, running=(), versions={}))
        assert (directive.action, directive.reason) == ("drain", "ada: maintenance")
        assert (await service.nodes.lease(node, 2, wait_s=0.05)).tasks == ()
        events = [event for event in (await service.control.report()).events if "ada" in render(event)]
        assert [event.kind.value for event in events] == ["flow_paused", "flow_resumed", "node_drained"]
        with pytest.raises(InvalidInput) as caught:
            await service.control.pause_flow(FlowId("nope"), is_paused=True, actor="ada", reason="")
        assert caught.value.code == "flow.unknown"


async def test_trajectories_groups_and_events_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        node = (await service.nodes.join(facts())).node
        lease = await service.nodes.lease(node, 4, wait_s=1)
        results = [with_text(episode(task), f"said by {task.member}") for task in lease.tasks]
        await service.nodes.push(node, results)
        batch = await service.trainer().pull_batch(version=Version(0), wait_s=2)
        assert batch is not None
        await service.trainer().report_step(step_of(batch))
        page = await service.control.trajectories(TrajectoryQuery(text="SAID BY 1", limit=1))
        assert (page.trajectories[0].completion_text, page.has_older) == ("said by 1", True)
    async with running(tmp_path) as service:
        after = await service.control.trajectories(TrajectoryQuery(text="said by 1", limit=1))
        assert after == page
        assert {
            trajectory.step
            for trajectory in (await service.control.trajectories(TrajectoryQuery(outcome="trained"))).trajectories
        } == {1}
        groups = (await service.control.groups(GroupQuery(step=1))).groups
        assert [(group.trajectories, group.reward_mean) for group in groups] == [(2, 0.5), (2, 0.5)]
        events = await service.control.events(EventQuery(kinds=(RecordKind.NODE_JOINED,)))
        assert [event.subject for event in events.events] == [node]
        with pytest.raises(InvalidInput) as caught:
            await service.control.history(resolution_s=2)
        assert caught.value.code == "history.unknown_resolution"
        assert await service.control.history(resolution_s=60) == ()
        assert await service.control.history(limit=0) == ()


async def test_a_run_without_durability_starts_with_no_earlier_events(tmp_path: Path) -> None:
    without_durability = config().model_copy(update={"durability": "none"})
    async with running(tmp_path, without_durability) as service:
        await service.control.pause_flow(FlowId("train-solver"), is_paused=True, actor="ada", reason="looking")
        assert len((await service.control.events(EventQuery(text="ada"))).events) == 1
    async with running(tmp_path, without_durability) as service:
        (event,) = (await service.control.events(EventQuery())).events
        assert (event.kind.value, event.subject) == ("service_started", "test")


async def test_lease_expiries_are_one_event_per_node(tmp_path: Path) -> None:
    async with running(tmp_path, config(lease_s=0.3)) as service:
        node = (await service.nodes.join(facts("quiet"))).node
        await service.nodes.lease(node, 8, wait_s=1)
        await asyncio.sleep(0.8)
        (event,) = (await service.control.events(EventQuery(kinds=(RecordKind.LEASES_EXPIRED,)))).events
        assert (event.subject, render(event).split()[0]) == (node, "8")


async def test_reported_versions_and_links_of_nodes_are_in_the_report(tmp_path: Path) -> None:
    (reported_version,) = make.weights_report(0).versions
    async with running(tmp_path) as service:
        await produce(service, 2)
        node = (await service.nodes.join(facts("other"))).node
        await service.nodes.heartbeat(
            NodeStatus(node=node, running=(), versions={PolicyId("solver"): Version(0)}, links=(make.link_report(),))
        )
        trainer = service.trainer()
        await trainer.attach(version=Version(0), backend="local", is_simulated=False)
        batch = await trainer.pull_batch(version=Version(0), wait_s=2)
        assert batch is not None
        step = replace(step_of(batch), metrics={"loss": 0.25, **reported_version.metrics()})
        assert await trainer.report_step(step)
        report = await service.control.report()
        assert report.weights == (WeightsReport(policy=PolicyId("solver"), versions=(reported_version,)),)
        assert {node.facts.name: node.links for node in report.nodes}["other"] == (make.link_report(),)
        assert [report.lag(node) for node in report.nodes if node.facts.name == "other"] == [{PolicyId("solver"): 1}]

    async with running(tmp_path) as service:
        assert (await service.control.report()).weights[0].versions == (reported_version,)


async def test_reports_that_fail_to_build_or_encode_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails each step of a report once: the watcher still receives later reports from the same process."""
    failing = {"build_report": service_module, "to_message": servicer_module}
    for name, module in failing.items():
        monkeypatch.setattr(module, name, failing_once(getattr(module, name)))
    async with running(tmp_path) as service:
        sequences = [(await anext(service.control.watch_report())).sequence for _ in range(2)]
        assert sequences == sorted(sequences)
        await produce(service, 2)


def failing_once(work: Callable[..., Any]) -> Callable[..., Any]:
    left = [OverflowError("a figure is too large")]

    def failing(*arguments: Any, **options: Any) -> Any:
        if left:
            raise left.pop()
        return work(*arguments, **options)

    return failing


async def test_the_trainer_of_an_untrained_policy_attaches_without_a_stream(tmp_path: Path) -> None:
    pytest.importorskip("httpx2", reason="the reward needs the extra llm")
    judged = config(stop=StopConfig(steps=1))
    models = {**judged.models, "judge": {"kind": "scripted"}}
    reward = {"kind": "llm_judge", "policy": "judge"}
    flows = {name: flow.model_copy(update={"reward": reward}) for name, flow in judged.flows.items()}
    async with running(tmp_path, judged.model_copy(update={"models": models, "flows": flows})) as service:
        attachment = await service.trainer("judge").attach(version=Version(0), backend="scripted", is_simulated=True)
        without_judge = (await service.nodes.join(facts("a", policies=(PolicyId("solver"),)))).node
        with_judge = (await service.nodes.join(facts("b", policies=(PolicyId("solver"), PolicyId("judge"))))).node
        refused = await service.nodes.lease(without_judge, 2, wait_s=0)
        leased = await service.nodes.lease(with_judge, 2, wait_s=2)
        report = await service.control.report()
        with raises_code(UnknownPolicy, "policy.unknown"):
            await service.trainer("judge").pull_batch(version=Version(0), wait_s=0)
    assert attachment.acknowledged_steps == 0
    assert (len(refused.tasks), len(leased.tasks)) == (0, 2)
    assert [stream.policy for stream in report.streams] == ["solver"]
