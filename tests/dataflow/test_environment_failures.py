"""Environments that die or hang, up to the batch of the trainer: a group completes without the member or is replaced,
never with a zero, and every group is counted."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from astraflow.contract.ids import FlowId, NodeId, Version
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode, Int32Array
from astraflow.raas.builders import build_flow
from astraflow.raas.counters import NodeCounters
from astraflow.raas.policies.recorder import RolloutRecorder
from astraflow.raas.tasks.runner import Runner
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.plugins import PLUGINS_VARIABLE, start_managed
from tests import make
from tests.dataflow.running import config, facts, running
from tests.dataflow.test_service import assert_balanced
from tests.fakes import environments as fakes
from tests.fakes.dataflow import flow
from tests.fakes.engine import FakeEngine
from tests.raas.parts import SOLVER_NODE, serving, unpinned

pytestmark = pytest.mark.anyio


class ActingEngine(FakeEngine):
    """Engine of a policy that acts as given, one action for each episode."""

    def __init__(self, *actions: str) -> None:
        super().__init__(version=0)
        self._actions = deque(actions)

    async def generate(self, request_id: str, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Returns the next action."""
        self.reply = f"<action>{self._actions.popleft()}</action>"
        return await super().generate(request_id, prompt, sampling)


@asynccontextmanager
async def node_of(engine: FakeEngine) -> AsyncIterator[Runner]:
    """Provides the runner of a node whose environments are in a worker process."""
    adapter = {"kind": "process", "of": {"kind": "faulty"}, "workers": 1, "act_s": 0.5}
    built = build_flow(flow(workflow={"kind": "act", "environment": adapter, "action_format": "tag"}))
    async with AsyncExitStack() as resources:
        await start_managed([built.workflow], resources)
        yield Runner(
            {FlowId("train-solver"): built},
            serving(engine),
            unpinned(),
            node=lambda: SOLVER_NODE,
            counters=NodeCounters(),
            clock=SystemClock(),
            timeout_s=60.0,
            text_share=0.0,
        )


@pytest.mark.long
async def test_a_member_whose_environment_dies_and_hangs_is_masked_and_its_group_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLUGINS_VARIABLE, fakes.__name__)
    engine = ActingEngine("win", "die", "hang", "win")
    async with (
        running(tmp_path, config(batch_groups=1, group_size=3, max_attempts=2, lease_s=60.0)) as service,
        node_of(engine) as node,
    ):
        name = (await service.nodes.join(facts())).node
        outcomes: list[str] = []
        for _ in range(4):
            (task,) = (await service.nodes.lease(name, 1, wait_s=2)).tasks
            outcomes += await service.nodes.push(name, [await node.run(task, RolloutRecorder())])
        trainer = service.trainer()
        await trainer.attach(version=Version(0), backend="test", is_simulated=True)
        batch = await trainer.pull_batch(version=Version(0), wait_s=5)
        report = await service.control.report()
    assert sorted(outcomes) == ["accepted", "accepted", "failed_environment", "retried"]
    assert report.flows[0].episodes == {"accepted": 2, "failed_environment": 1, "retried": 1}
    assert batch is not None and [row.trajectory.reward for row in batch.rows] == [1.0] * 2
    assert (report.flows[0].admitted, report.flows[0].dropped) == (1, {})
    assert_balanced(report)


async def test_a_group_of_which_every_environment_fails_is_dropped_and_replaced(tmp_path: Path) -> None:
    def failed(task: Task) -> Episode:
        failure = Failure(boundary=Boundary.ENVIRONMENT, message="the worker died")
        return Episode(task=task.id, node=NodeId("any"), trajectories=(), failure=failure, attempt=task.attempt)

    async with running(tmp_path, config(batch_groups=1, max_staleness=0, max_attempts=1)) as service:
        name = (await service.nodes.join(facts())).node
        first = (await service.nodes.lease(name, 8, wait_s=2)).tasks
        assert (await service.nodes.lease(name, 8, wait_s=0.05)).tasks == ()
        lost = await service.nodes.push(name, [failed(task) for task in first])
        second = (await service.nodes.lease(name, 8, wait_s=2)).tasks
        trained = await service.nodes.push(name, [make.episode(str(task.id), reward=1.0) for task in second])
        trainer = service.trainer()
        await trainer.attach(version=Version(0), backend="test", is_simulated=True)
        batch = await trainer.pull_batch(version=Version(0), wait_s=5)
        report = await service.control.report()
    assert (lost, trained) == (("failed_environment",) * 2, ("accepted",) * 2)
    assert {task.group for task in first}.isdisjoint(task.group for task in second)
    assert batch is not None and {row.group for row in batch.rows} == {task.group for task in second}
    assert (report.flows[0].issued, report.flows[0].admitted, sum(report.flows[0].dropped.values())) == (2, 1, 1)
    assert_balanced(report)
