"""Evaluations on nodes whose engine serves one version: a share of the nodes is reserved, the others train."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.ids import NodeId, PolicyId, Version
from astraflow.contract.nodes import EvaluationMode, NodeStatus
from astraflow.contract.reports.evaluations import EvaluationState
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode
from tests import make
from tests.dataflow.running import facts
from tests.dataflow.test_evaluation import HELD_OUT, SOLVER, EvaluationWork, answer, evaluating, with_evaluation

pytestmark = pytest.mark.anyio

SLOTS = 4


class Pool:
    """Nodes with one engine each, which ask for tasks in turn."""

    def __init__(self, work: EvaluationWork, count: int, mode: EvaluationMode = EvaluationMode.RESERVED) -> None:
        self.work = work
        self.held: dict[NodeId, list[Task]] = {}
        self.versions: dict[NodeId, Version] = {}
        work.nodes.membership.leave(work.node, "not used here")
        for number in range(count):
            node = work.nodes.membership.join(replace(facts(f"own-{number}"), evaluation_mode=mode)).id
            self.held[node], self.versions[node] = [], Version(0)
            self.beat(node)

    def beat(self, node: NodeId) -> None:
        """Sends a heartbeat; a node without evaluation tasks serves the trainer's version."""
        tasks = self.held[node]
        pinned = [task.pinned[SOLVER] for task in tasks if task.pinned]
        self.versions[node] = pinned[0] if pinned else self.work.run.streams[SOLVER].version
        running = tuple(task.id for task in tasks)
        self.work.nodes.membership.heartbeat(
            NodeStatus(node=node, running=running, versions={SOLVER: self.versions[node]})
        )

    async def lease(self, node: NodeId, *, takes_evaluations: bool = True) -> list[Task]:
        """Fills the node's slots; returns the new tasks."""
        free = SLOTS - len(self.held[node])
        capacity = SLOTS if takes_evaluations else 0
        versions = {SOLVER: self.versions[node]}
        lease = await self.work.nodes.leasing.lease(
            node, free, versions=versions, wait_s=0, evaluation_capacity=capacity
        )
        self.held[node] += lease.tasks
        return list(lease.tasks)

    async def finish(self, node: NodeId) -> None:
        """Pushes the results of all tasks of the node."""
        tasks, self.held[node] = self.held[node], []
        await self.work.nodes.results.push(node, [replace(self._episode(task, node), node=node) for task in tasks])

    def _episode(self, task: Task, node: NodeId) -> Episode:
        if task.pinned:
            return answer(task)
        trajectory = make.trajectory(policy=SOLVER, version=self.versions[node])
        return Episode(task=task.id, node=node, trajectories=(trajectory,))

    def reserved(self) -> list[str]:
        return [node for round_ in self.work.report().evaluations for node in round_.reserved_nodes]

    def kinds(self) -> dict[str, set[str]]:
        """Returns for each node that holds tasks what they are for."""
        return {node: {task.flow for task in tasks} for node, tasks in self.held.items() if tasks}


def settings(**options: Any) -> Any:
    return with_evaluation(**{"prompts": 12, "samples": 2, "at_start": True} | options)


async def test_other_nodes_follow_versions_and_train_while_a_share_evaluates(tmp_path: Path) -> None:
    async with evaluating(tmp_path, settings(share=0.5)) as work:
        pool = Pool(work, 4)
        steps = 0
        while work.states() == [(1, "running")]:
            for node in pool.held:
                await pool.lease(node)
            evaluating_nodes = [node for node, kinds in pool.kinds().items() if HELD_OUT in kinds]
            assert len(evaluating_nodes) <= 2, "the stated share"
            assert all(kinds == {HELD_OUT} for node, kinds in pool.kinds().items() if node in evaluating_nodes)
            for node in pool.held:
                await pool.finish(node)
            batch = await work.trainers.pull(SOLVER, Version(steps), wait_s=0)
            steps += batch is not None
            for node in pool.held:
                pool.beat(node)
            assert max(pool.versions.values()) == work.run.streams[SOLVER].version, "others never wait"
        assert steps >= 2
        (ended,) = work.report().evaluations
        assert (ended.state, ended.done, ended.masked) == (EvaluationState.DONE, 24, 0)
        assert pool.reserved() == []


async def test_a_reserved_node_finishes_its_training_tasks_first(tmp_path: Path) -> None:
    async with evaluating(tmp_path, settings(at_start=False)) as work:
        pool = Pool(work, 1)
        (node,) = pool.held
        assert {task.flow for task in await pool.lease(node)} == {"train-solver"}
        pool.held[node], last = pool.held[node][:1], pool.held[node][1:]
        work.evaluator.request(HELD_OUT, {}, actor="test", reason="now")
        assert await pool.lease(node) == []
        assert pool.reserved() == [node]
        pool.held[node] = [*pool.held[node], *last]
        await pool.finish(node)
        assert {task.flow for task in await pool.lease(node)} == {HELD_OUT}


async def test_a_single_node_takes_turns_between_evaluation_and_training(tmp_path: Path) -> None:
    async with evaluating(tmp_path, settings(prompts=2)) as work:
        pool = Pool(work, 1)
        (node,) = pool.held
        assert {task.flow for task in await pool.lease(node)} == {HELD_OUT}
        await pool.finish(node)
        assert work.states() == [(1, "done")]
        assert {task.flow for task in await pool.lease(node)} == {"train-solver"}


async def test_a_lost_evaluation_node_is_replaced(tmp_path: Path) -> None:
    async with evaluating(tmp_path, settings()) as work:
        pool = Pool(work, 2)
        lost, other = pool.held
        assert {task.flow for task in await pool.lease(lost)} == {HELD_OUT}
        assert {task.flow for task in await pool.lease(other)} == {"train-solver"}
        await pool.finish(other)
        work.clock.advance(4.0)
        pool.beat(other)
        work.clock.advance(2.0)
        work.nodes.membership.tick()
        assert {task.flow for task in await pool.lease(other)} == {HELD_OUT}
        assert pool.reserved() == [other]


async def test_a_node_that_cannot_load_the_version_makes_room_for_another_one(tmp_path: Path) -> None:
    async with evaluating(tmp_path, settings()) as work:
        pool = Pool(work, 2)
        failing, other = pool.held
        await pool.lease(failing)
        tasks, pool.held[failing] = pool.held[failing], []
        await work.nodes.results.hand_back(failing, [make.partial(task.id, nothing=True) for task in tasks])
        assert {task.flow for task in await pool.lease(failing, takes_evaluations=False)} == {"train-solver"}
        assert {task.flow for task in await pool.lease(other)} == {HELD_OUT}


async def test_all_nodes_evaluate_while_no_flow_trains(tmp_path: Path) -> None:
    async with evaluating(tmp_path, settings()) as work:
        pool = Pool(work, 3)
        for flow in work.run.flows.values():
            flow.is_paused = True
        for node in pool.held:
            await pool.lease(node)
        assert set(map(frozenset, pool.kinds().values())) == {frozenset({HELD_OUT})}
        assert len(pool.reserved()) == 3


async def test_a_server_of_another_party_evaluates_only_the_version_that_it_serves(tmp_path: Path) -> None:
    async with evaluating(tmp_path, settings(at_start=False)) as work:
        pool = Pool(work, 1, EvaluationMode.SERVED_VERSION)
        (node,) = pool.held
        await work.step_to(2)
        pool.versions[node] = Version(2)
        work.evaluator.request(HELD_OUT, {PolicyId("solver"): Version(1)}, actor="test", reason="older")
        assert HELD_OUT not in {task.flow for task in await pool.lease(node)}
        work.evaluator.stop(HELD_OUT, actor="test", reason="not served")
        await pool.finish(node)
        work.evaluator.request(HELD_OUT, {}, actor="test", reason="newest")
        assert {task.flow for task in await pool.lease(node)} == {HELD_OUT}
