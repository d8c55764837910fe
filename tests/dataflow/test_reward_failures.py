"""A failed reward is computed again on another attempt, then its member is masked; it never becomes a zero."""

from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.ids import NodeId, Version
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode
from tests import make
from tests.dataflow.running import config, facts, running

pytestmark = pytest.mark.anyio
FAILURE = Failure(boundary=Boundary.REWARD, message="the judge did not answer")


def scored(task: Task) -> Episode:
    return replace(make.episode(str(task.id), reward=1.0), attempt=task.attempt)


def failed(task: Task) -> Episode:
    return Episode(task=task.id, node=NodeId("any"), trajectories=(), failure=FAILURE, attempt=task.attempt)


@pytest.mark.parametrize("works_again", [True, False])
async def test_a_reward_failure_is_retried_and_then_masked(tmp_path: Path, works_again: bool) -> None:
    async with running(tmp_path, config(batch_groups=1, group_size=3, max_attempts=2)) as service:
        node = (await service.nodes.join(facts())).node
        tasks = (await service.nodes.lease(node, 3, wait_s=2)).tasks
        outcomes = await service.nodes.push(node, [failed(tasks[0]), scored(tasks[1]), scored(tasks[2])])
        assert outcomes == ("retried", "accepted", "accepted")

        (again,) = (await service.nodes.lease(node, 1, wait_s=2)).tasks
        assert (again.id, again.attempt) == (tasks[0].id, 1)
        outcomes = await service.nodes.push(node, [scored(again) if works_again else failed(again)])
        assert outcomes == ("accepted" if works_again else "failed_reward",)

        trainer = service.trainer()
        await trainer.attach(version=Version(0), backend="test", is_simulated=True)
        batch = await trainer.pull_batch(version=Version(0), wait_s=5)
        report = await service.control.report()
    assert batch is not None
    assert [row.trajectory.reward for row in batch.rows] == [1.0] * (3 if works_again else 2)
    assert report.flows[0].episodes["retried"] == 1
    assert report.flows[0].episodes.get("failed_reward", 0) == (0 if works_again else 1)
