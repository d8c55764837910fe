"""Timeline of a sampled episode: the spans of its node, then those of dataflow until its step."""

from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.batches import StepReport
from astraflow.contract.ids import PolicyId, TaskId, Version
from astraflow.contract.reports.queries import TrajectoryQuery
from astraflow.contract.rollouts.timelines import Hop
from astraflow.contract.rollouts.trajectories import Episode
from tests import make
from tests.dataflow.running import config
from tests.dataflow.test_evaluation import EvaluationWork, evaluating

pytestmark = pytest.mark.anyio

SOLVER = PolicyId("solver")


def episode(work: EvaluationWork, task: TaskId, *, ended_at: float) -> Episode:
    hops = (
        Hop(name="rl.lease", began_at=ended_at - 3.0, duration_s=1.0),
        Hop(name="rl.episode", began_at=ended_at - 2.0, duration_s=2.0),
        Hop(name="rl.generate", began_at=ended_at - 1.5, duration_s=1.0),
    )
    text = replace(make.trajectory(policy=SOLVER), prompt_text="p", completion_text="c")
    return Episode(task=task, node=work.node, trajectories=(text,), hops=hops)


async def test_a_trained_episode_has_all_hops_from_lease_to_step(tmp_path: Path) -> None:
    async with evaluating(tmp_path, config(batch_groups=1)) as work:
        began_at = work.clock.wall()
        lease = await work.nodes.leasing.lease(work.node, 2, versions={SOLVER: Version(0)}, wait_s=0)
        work.clock.advance(5.0)
        ended_at = work.clock.wall() - 0.5
        await work.push([episode(work, task.id, ended_at=ended_at) for task in lease.tasks])
        work.clock.advance(1.0)
        batch = await work.trainers.pull(SOLVER, Version(0), wait_s=0)
        assert batch is not None
        work.clock.advance(2.0)
        report = StepReport(batch=batch.id, policy=SOLVER, version=Version(1), wait_s=0.0, compute_s=1.0, publish_s=0.0)
        await work.trainers.report_step(report)
        page = await work.run.samples.page(TrajectoryQuery())
    timelines = [sample.timeline for sample in page.trajectories]
    assert len(timelines) == 2
    assert [(hop.name, round(hop.began_at - began_at, 3), round(hop.duration_s, 3)) for hop in timelines[0]] == [
        ("rl.lease", 1.5, 1.0),
        ("rl.episode", 2.5, 2.0),
        ("rl.generate", 3.0, 1.0),
        ("rl.push", 4.5, 0.5),
        ("rl.admit", 5.0, 0.0),
        ("rl.batch", 5.0, 1.0),
        ("rl.step", 6.0, 2.0),
    ]
    assert timelines[0][-1].detail == "step 1"


async def test_a_node_whose_clock_is_ahead_yields_no_negative_durations(tmp_path: Path) -> None:
    async with evaluating(tmp_path, config(batch_groups=1)) as work:
        lease = await work.nodes.leasing.lease(work.node, 2, versions={SOLVER: Version(0)}, wait_s=0)
        ahead = work.clock.wall() + 60.0
        await work.push([episode(work, task.id, ended_at=ahead) for task in lease.tasks])
        (sample, _) = (await work.run.samples.page(TrajectoryQuery())).trajectories
    assert min(hop.duration_s for hop in sample.timeline) == 0.0
    assert [hop.name for hop in sample.timeline][-2:] == ["rl.push", "rl.admit"]
