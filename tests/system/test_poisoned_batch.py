"""A run of real processes with rows that end its trainer: their batch is set aside, and training goes on."""

import subprocess
from pathlib import Path

import pytest

from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.runtime.plugins import PLUGINS_VARIABLE
from astraflow.wire.channel import dial
from tests import make
from tests.dataflow.running import facts
from tests.system.processes import RunningRun, assert_balanced, command, running

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

POISON = 0.125
"""Reward of the rows that end the trainer."""

_BACKEND = f"""
import ctypes
from astraflow.trainer.backends import backends
from astraflow.trainer.backends.scripted import ScriptedBackend, ScriptedOptions

class FragileOptions(ScriptedOptions):
    how: str = "error"

@backends.register("fragile", options=FragileOptions)
class FragileBackend(ScriptedBackend):
    def __init__(self, options, model, algorithm, *, seed):
        super().__init__(options, model, algorithm, seed=seed)
        self._how = options.how

    def step(self, batch):
        if any({POISON} in part.rewards for part in batch.rows.parts):
            if self._how == "error":
                raise IndexError("index out of range in self")
            ctypes.string_at(0)
        return super().step(batch)
"""


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("error", "IndexError: index out of range"),
        pytest.param("abort", "Segmentation fault", marks=[pytest.mark.real_processes, pytest.mark.long]),
    ],
)
async def test_training_goes_on_without_a_batch_that_ends_the_trainer(
    how: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fragile.py").write_text(_BACKEND)
    monkeypatch.setenv(PLUGINS_VARIABLE, str(tmp_path / "fragile.py"))
    backend = ("--set", f'policies.solver.backend={{ kind = "fragile", step_s = 0.05, how = "{how}" }}')
    endless = ("--no-web", "--set", "nodes.capacity=4", "--set", "stop.reward=2.0", "--set", "stop.steps=1000000")
    async with running("smoke", tmp_path / "run", *endless, *backend) as run:
        await run.until(lambda report: report.streams[0].training.steps >= 2)
        await push_poison(run)
        report = await run.until(lambda report: report.streams[0].groups.dropped.get("set_aside", 0) > 0)
        (problem, *_) = (problem for problem in report.problems if problem.cause == "batch_set_aside")
        assert error in str(problem.values["error"]) and "harm" in str(problem.values["nodes"])
        report = await run.steps_more(5)
        assert_balanced(report)
        assert {"step_failed", "batch_set_aside"} <= {event.kind.value for event in report.events}
    async with running("smoke", tmp_path / "run", *endless, *backend) as run:
        report = await run.steps_more(3)
        assert_balanced(report)
        assert report.streams[0].groups.dropped["set_aside"] > 0
        ends = (tmp_path / "run/logs/supervisor.log").read_text().count("trainer-solver failed")
        assert ends == 2
    exported = subprocess.run(
        command("set-aside", str(tmp_path / "run"), "--to", str(tmp_path / "out")), check=True, capture_output=True
    )
    assert b"exported" in exported.stdout
    assert any(f'"reward": {POISON}' in path.read_text() for path in (tmp_path / "out").iterdir())


async def push_poison(run: RunningRun) -> None:
    """Joins as a node that pushes rows which end the trainer."""
    async with dial(run.facts()["dataflow"], token=run.token()) as link:
        client = NodeDataClient(link)
        node = (await client.join(facts("harm"))).node
        versions = {policy: version for each in (await run.report()).nodes for policy, version in each.versions.items()}
        tasks: tuple[Task, ...] = ()
        while not tasks:
            await client.heartbeat(NodeStatus(node=node, running=(), versions=versions))
            tasks = (await client.lease(node, 1, wait_s=0.5, versions=versions)).tasks
        trajectory = make.trajectory(version=max(versions.values()), reward=POISON)
        await client.push(node, [Episode(task=tasks[0].id, node=node, trajectories=(trajectory,))])
        await client.leave(node, reason="done")
