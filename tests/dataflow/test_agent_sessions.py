"""Sessions of agents at dataflow: recorded calls reach the samples and no trainer, live sessions the report."""

from pathlib import Path

import pytest

from astraflow.contract.ids import NodeId, Version
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.reports.queries import TrajectoryQuery
from astraflow.contract.rollouts.agent_calls import MAX_LIVE_SESSIONS, MAX_REPORTED_SESSIONS, CallOutcome
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.trajectories import Episode
from tests.dataflow.running import config, facts, running, sessions_config
from tests.fakes.agent_session import agent_trajectories, live_session

pytestmark = pytest.mark.anyio


def status(node: NodeId, ages_s: range) -> NodeStatus:
    sessions = tuple(live_session(f"train:{age_s}/0", age_s=float(age_s)) for age_s in ages_s)
    return NodeStatus(node=node, running=(), versions={}, sessions=sessions)


async def test_calls_of_a_pushed_session_are_sampled_and_not_trained_on(tmp_path: Path) -> None:
    async with running(tmp_path, sessions_config(batch_groups=1)) as service:
        node = (await service.nodes.join(facts())).node
        lease = await service.nodes.lease(node, 2, wait_s=5)
        episodes = [
            Episode(task=task.id, node=node, trajectories=agent_trajectories(reward=float(task.member)))
            for task in lease.tasks
        ]
        await service.nodes.push(node, episodes)
        query = TrajectoryQuery(task=lease.tasks[0].id, with_calls=True)
        sampled = (await service.control.trajectories(query)).trajectories
        trainer = service.trainer()
        await trainer.attach(version=Version(0), backend="local", is_simulated=False)
        batch = await trainer.pull_batch(version=Version(0), wait_s=5)
    assert [sample.calls for sample in reversed(sampled)] == [trajectory.calls for trajectory in agent_trajectories()]
    assert batch is not None
    assert len(batch.rows) == 6
    assert all(row.trajectory.calls == () for row in batch.rows)
    assert all(row.trajectory.prompt_text for row in batch.rows)


async def test_calls_of_failed_sessions_are_sampled_once(tmp_path: Path) -> None:
    """One member fails on its node, the other one has a reward outside of the flow's range."""
    calls = agent_trajectories()[0].calls
    async with running(tmp_path, sessions_config(batch_groups=1, max_attempts=1)) as service:
        node = (await service.nodes.join(facts())).node
        tasks = (await service.nodes.lease(node, 2, wait_s=5)).tasks
        failure = Failure(boundary=Boundary.WORKFLOW, message="the program ended by a signal")
        failed = Episode(task=tasks[0].id, node=node, trajectories=(), failure=failure, failed_calls=calls)
        outside = Episode(task=tasks[1].id, node=node, trajectories=agent_trajectories(reward=1e5))
        await service.nodes.push(node, [failed, outside])
        samples = (await service.control.trajectories(TrajectoryQuery(with_calls=True))).trajectories
        refused = (await service.control.trajectories(TrajectoryQuery(call=CallOutcome.REFUSED))).trajectories
    out_of_range, crashed = samples
    assert (crashed.task, crashed.failure, crashed.calls) == (tasks[0].id, failure, calls)
    assert crashed.call_outcomes == {"answered": 3, "aborted": 1, "replayed": 1, "refused": 1}
    assert out_of_range.failure is not None
    assert out_of_range.failure.boundary is Boundary.REWARD
    assert [call.turn for call in out_of_range.calls] == [None] * 8, "they became no turns"
    assert [sample.task for sample in refused] == [tasks[1].id, tasks[0].id]
    assert all(sample.calls == () for sample in refused), "calls are sent on request only"


async def test_the_report_has_the_oldest_sessions_of_all_nodes_with_their_current_ages(tmp_path: Path) -> None:
    names = [f"node-{number}" for number in range(MAX_REPORTED_SESSIONS // MAX_LIVE_SESSIONS + 1)]
    async with running(tmp_path, config(lease_s=600.0)) as service:
        for number, name in enumerate(names):
            node = (await service.nodes.join(facts(name))).node
            ages_s = range(1000 * number, 1000 * number + MAX_LIVE_SESSIONS)
            await service.nodes.heartbeat(status(node, ages_s))
        nodes = {node.facts.name: node for node in (await service.control.report()).nodes}
        await service.nodes.leave(nodes[names[-1]].id, reason="done")
        later = {node.facts.name: node for node in (await service.control.report()).nodes}

    assert nodes[names[0]].sessions == ()
    assert sum(len(node.sessions) for node in nodes.values()) == MAX_REPORTED_SESSIONS
    oldest = nodes[names[-1]].sessions
    assert [session.task for session in oldest[:2]] == ["train:4031/0", "train:4030/0"]
    assert all(float(session.task[6:-2]) <= session.age_s < float(session.task[6:-2]) + 60 for session in oldest)
    assert later[names[-1]].sessions == ()
    assert len(later[names[0]].sessions) == MAX_LIVE_SESSIONS
