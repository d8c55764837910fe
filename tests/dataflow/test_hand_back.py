"""Unfinished tasks over real gRPC: which node may hand them back, what the next node gets, and crashes."""

from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput, UnknownNode
from astraflow.contract.fleet.instances import Cause
from astraflow.contract.ids import NodeId, PolicyId, Version
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.records import render
from astraflow.contract.reports.report import NodeState, Report
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.partial_rollouts import MAX_PARTIAL_ROLLOUT_BYTES
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow import service as service_module
from astraflow.dataflow.operations import assignment
from tests import make
from tests.dataflow.running import Service, config, facts, running
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

SOLVER = PolicyId("solver")


async def leased(service: Service, count: int, name: str = "ada") -> tuple[NodeId, tuple[Task, ...]]:
    node = (await service.nodes.join(facts(name))).node
    return node, (await service.nodes.lease(node, count, wait_s=1)).tasks


def partial_rollouts(report: Report) -> dict[str, int]:
    """Returns the counts that are not 0."""
    return {name: count for name, count in report.flows[0].partial_rollouts.items() if count}


async def test_a_returned_task_is_leased_first_and_with_its_partial_rollout(tmp_path: Path) -> None:
    async with running(tmp_path, config(group_size=4, batch_groups=1)) as service:
        ada, tasks = await leased(service, 2)
        written = make.recorded("dc"), make.recorded("whole", request="second")
        outcomes = await service.nodes.hand_back(ada, [make.partial(tasks[1].id, *written)])
        assert outcomes == ("handed_back",)
        bob, (again, next_one) = await leased(service, 2, "bob")
        assert (again.id, again.attempt, next_one.resume_from) == (tasks[1].id, 0, ())
        assert [partial_rollout.generation.tokens.tobytes() for partial_rollout in again.resume_from] == [
            partial_rollout.generation.tokens.tobytes() for partial_rollout in written
        ]
        assert await service.nodes.push(bob, [make.episode(again.id, continued_tokens=7)]) == ("accepted",)
        report = await service.control.report()
        assert partial_rollouts(report) == {"handed_back": 1, "continued": 1, "tokens_saved": 7}
        assert report.flows[0].tasks_returned == 1


async def test_only_the_current_lease_holder_can_return_a_task(tmp_path: Path) -> None:
    async with running(tmp_path, config(group_size=4, batch_groups=1)) as service:
        ada, (task, other) = await leased(service, 2)
        bob = (await service.nodes.join(facts("bob"))).node
        failure = Failure(boundary=Boundary.ENGINE, message="broke")
        failed = Episode(task=other.id, node=ada, trajectories=(), failure=failure)
        assert await service.nodes.push(ada, [failed]) == ("retried",)
        assert await service.nodes.hand_back(bob, [make.partial(task.id)]) == ("late",)
        assert await service.nodes.hand_back(ada, [make.partial(other.id)]) == ("late",), "the attempt has failed"
        assert await service.nodes.hand_back(ada, [make.partial(task.id, attempt=1)]) == ("late",)
        assert await service.nodes.hand_back(ada, [make.partial(task.id)] * 2) == ("handed_back", "late")
        assert await service.nodes.hand_back(ada, [make.partial("train-solver:99/0")]) == ("unknown",)
        assert await service.nodes.hand_back(ada, [make.partial("elsewhere:0/0")]) == ("unknown",)
        report = await service.control.report()
        assert partial_rollouts(report) == {"handed_back": 1, "late": 4, "stored": 1, "stored_bytes": 16}
        assert report.held_bytes == 16


async def test_a_result_of_the_previous_holder_counts_if_it_is_the_first(tmp_path: Path) -> None:
    async with running(tmp_path, config(group_size=3, batch_groups=1)) as service:
        ada, (task, _) = await leased(service, 2)
        await service.nodes.hand_back(ada, [make.partial(task.id)])
        bob, (again, _) = await leased(service, 2, "bob")
        assert await service.nodes.push(ada, [make.episode(task.id)]) == ("accepted",)
        assert await service.nodes.push(bob, [make.episode(again.id, continued_tokens=2)]) == ("duplicate",)
        assert partial_rollouts(await service.control.report()) == {"handed_back": 1, "discarded": 1}


async def test_a_failure_of_a_previous_holder_uses_no_attempt(tmp_path: Path) -> None:
    async with running(tmp_path, config(group_size=2, batch_groups=1, max_attempts=2)) as service:
        ada, (task, _) = await leased(service, 2)
        await service.nodes.hand_back(ada, [make.partial(task.id)])
        bob, (again,) = await leased(service, 1, "bob")
        broken = Episode(
            task=task.id, node=ada, trajectories=(), failure=Failure(boundary=Boundary.ENGINE, message="broke")
        )
        assert await service.nodes.push(ada, [broken]) == ("superseded",)
        assert await service.nodes.push(bob, [make.episode(again.id)]) == ("accepted",)


async def test_a_retry_starts_without_the_partial_rollout(tmp_path: Path) -> None:
    async with running(tmp_path, config(group_size=2, batch_groups=1)) as service:
        ada, (task,) = await leased(service, 1)
        await service.nodes.hand_back(ada, [make.partial(task.id)])
        bob, (again,) = await leased(service, 1, "bob")
        assert again.resume_from
        broken = Episode(
            task=task.id, node=bob, trajectories=(), failure=Failure(boundary=Boundary.ENVIRONMENT, message="broke")
        )
        assert await service.nodes.push(bob, [broken]) == ("retried",)
        (third,) = (await service.nodes.lease(bob, 1, wait_s=1)).tasks
        assert (third.id, third.attempt, third.resume_from) == (task.id, 1, ())
        assert partial_rollouts(await service.control.report()) == {"handed_back": 1, "discarded": 1}


async def test_partial_rollouts_and_attempts_survive_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "GRACE_S", 0.5)
    run = config(group_size=4, batch_groups=1)
    broken = Failure(boundary=Boundary.ENGINE, message="broke")
    async with running(tmp_path, run) as service:
        ada, tasks = await leased(service, 3)
        failed = Episode(task=tasks[0].id, node=ada, trajectories=(), failure=broken)
        await service.nodes.push(ada, [failed])
        await service.nodes.hand_back(ada, [make.partial(task.id, make.recorded("abc")) for task in tasks[1:]])
        await service.nodes.push(ada, [make.episode(tasks[2].id)])
    async with running(tmp_path, run) as service:
        assert partial_rollouts(await service.control.report()) == {
            "handed_back": 2,
            "discarded": 1,
            "stored": 1,
            "stored_bytes": 24,
        }
        bob = (await service.nodes.join(facts("bob"))).node
        leased_tasks: dict[str, Task] = {}
        while not {tasks[0].id, tasks[1].id} <= leased_tasks.keys():
            leased_tasks |= {task.id: task for task in (await service.nodes.lease(bob, 8, wait_s=1)).tasks}
        assert tasks[2].id not in leased_tasks
        assert (leased_tasks[tasks[0].id].attempt, leased_tasks[tasks[0].id].resume_from) == (1, ())
        (kept,) = leased_tasks[tasks[1].id].resume_from
        assert kept.generation.tokens.tolist() == [*b"abc"]


async def test_a_partial_rollout_that_is_too_stale_is_restarted(tmp_path: Path) -> None:
    async with running(tmp_path, config(group_size=2, batch_groups=1, max_staleness=1)) as service:
        ada, (old, young) = await leased(service, 2)
        aged = make.partial(old.id, make.recorded(version=0)), make.partial(young.id, make.recorded(version=1))
        await service.nodes.hand_back(ada, aged)
        await service.trainer().attach(version=Version(2), backend="local", is_simulated=False)
        _, (first, second) = await leased(service, 2, "bob")
        assert {first.id: len(first.resume_from), second.id: len(second.resume_from)} == {old.id: 0, young.id: 1}
        assert partial_rollouts(await service.control.report()) == {
            "handed_back": 2,
            "stale": 1,
            "stored": 1,
            "stored_bytes": 16,
        }
    async with running(tmp_path, config(group_size=2, batch_groups=1)) as service:
        assert partial_rollouts(await service.control.report())["stored"] == 1, (
            "stale partial rollouts are also removed from the journal"
        )


async def test_an_empty_partial_rollout_keeps_the_earlier_one(tmp_path: Path) -> None:
    async with running(tmp_path, config(group_size=2, batch_groups=1)) as service:
        ada, (task, _) = await leased(service, 2)
        kept = make.partial(task.id)
        await service.nodes.hand_back(ada, [kept])
        bob, (again,) = await leased(service, 1, "bob")
        await service.nodes.hand_back(bob, [make.partial(again.id, nothing=True)])
        (third,) = (await service.nodes.lease(ada, 1, wait_s=1)).tasks
        assert (third.id, len(third.resume_from)) == (task.id, 1), (
            "the task was not started, so the stored rollout is still valid"
        )
        assert partial_rollouts(await service.control.report())["handed_back"] == 1


async def test_the_size_of_a_lease_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "MAX_LEASE_BYTES", 100)
    async with running(tmp_path, config(group_size=4, batch_groups=2)) as service:
        ada, tasks = await leased(service, 4)
        await service.nodes.hand_back(ada, [make.partial(task.id, make.recorded("a" * 10)) for task in tasks])
        _, first = await leased(service, 8, "bob")
        _, rest = await leased(service, 8, "eve")
        assert [task.id for task in (*first, *rest)] == [task.id for task in tasks[::-1]]
        assert [bool(task.resume_from) for task in (*first, *rest)] == [True] * 4
        assert len((await leased(service, 8, "zoe"))[1]) == 8


async def test_an_invalid_or_too_large_partial_rollout_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        ada, (task,) = await leased(service, 1)
        with raises_code(InvalidInput, "episode.unknown_policy"):
            await service.nodes.hand_back(ada, [make.partial(task.id, make.recorded(policy="stranger"))])
        with raises_code(InvalidInput, "partial_rollout.too_large"):
            make.partial(task.id, make.recorded("a" * (MAX_PARTIAL_ROLLOUT_BYTES // 8 + 1)))
        with pytest.raises(UnknownNode):
            await service.nodes.hand_back(NodeId("unknown"), [])
        assert (await service.control.report()).flows[0].tasks_leased == 1


async def test_every_heartbeat_repeats_the_deadline_of_a_drain(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        ada, _ = await leased(service, 1)
        status = NodeStatus(node=ada, running=(), versions={})
        message = await service.control.drain_node(ada, actor="eve", reason="preemption", deadline_s=30)
        assert "within 30 s" in message
        first, second = await service.nodes.heartbeat(status), await service.nodes.heartbeat(status)
        assert (first.action, first.reason) == ("drain", "eve: preemption")
        assert 0 < second.deadline_s < first.deadline_s <= 30
        await service.control.drain_node(ada, actor="eve", reason="no hurry")
        assert (await service.nodes.heartbeat(status)).deadline_s == 0
        with pytest.raises(InvalidInput) as caught:
            await service.control.drain_node(ada, actor="eve", reason="when?", deadline_s=float("nan"))
        assert caught.value.code == "request.invalid_field"


@pytest.mark.parametrize(("is_asked", "cause"), [(True, Cause.REQUESTED), (False, Cause.PREEMPTED)])
async def test_the_report_has_the_first_cause_of_a_departure(tmp_path: Path, is_asked: bool, cause: Cause) -> None:
    async with running(tmp_path) as service:
        ada, _ = await leased(service, 1)
        assert (await service.control.report()).nodes[0].cause is None
        if is_asked:
            await service.control.drain_node(ada, actor="eve", reason="it is slow")
        noticed = NodeStatus(node=ada, running=(), versions={}, leave_reason="preempted: in 120 s", is_preempted=True)
        await service.nodes.heartbeat(noticed)
        if not is_asked:
            await service.control.drain_node(ada, actor="fleet", reason="it is taken away")
        await service.nodes.leave(ada, reason="preempted: in 120 s")
        (node,) = (await service.control.report()).nodes
        assert (node.state, node.cause) == (NodeState.GONE, cause)


async def test_an_idle_preempted_node_reports_the_notice_when_it_leaves(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        ada, _ = await leased(service, 1)
        await service.nodes.leave(ada, reason="preempted: in 120 s", is_preempted=True)
        (node,) = (await service.control.report()).nodes
        assert (node.state, node.cause) == (NodeState.GONE, Cause.PREEMPTED)


async def test_a_node_that_stops_by_itself_has_no_cause(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        ada, _ = await leased(service, 1)
        await service.nodes.heartbeat(NodeStatus(node=ada, running=(), versions={}, leave_reason="stopped"))
        assert (await service.control.report()).nodes[0].cause is None


async def test_a_node_that_announces_its_end_is_draining_and_gets_no_tasks(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        ada, _ = await leased(service, 1)
        for _ in range(2):
            await service.nodes.heartbeat(
                NodeStatus(node=ada, running=(), versions={}, leave_reason="preempted: in 120 s")
            )
        assert (await service.nodes.lease(ada, 1, wait_s=0)).tasks == ()
        report = await service.control.report()
        assert report.nodes[0].state is NodeState.DRAINING
        (event,) = (event for event in report.events if event.kind.value == "node_draining")
        assert (event.subject, render(event)) == (ada, "preempted: in 120 s")
