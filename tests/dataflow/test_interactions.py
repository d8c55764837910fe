"""Endings and reward terms of rollouts, in the report of a flow and in the metrics of a step."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.ids import FlowId, Version
from astraflow.contract.reports.queries import RewardQuery, TrajectoryQuery
from astraflow.contract.rollouts.spans import Ending
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.contract.training_metrics import MAX_REWARD_TERMS
from astraflow.dataflow.activity import StepInteractions, TermActivity
from tests import make
from tests.dataflow.running import facts, running
from tests.dataflow.test_service import episode, step_of

pytestmark = pytest.mark.anyio

ENDINGS = (Ending.WON, Ending.WON, Ending.TURNS, None)


def interaction(task: Task, index: int) -> Episode:
    """Returns an episode with texts, an ending and reward terms."""
    plain = episode(task)
    (trajectory,) = plain.trajectories
    changes: dict[str, Any] = {
        "prompt_text": "p",
        "completion_text": "c",
        "reward_terms": {"format": index / 2, "lengths/a": -1.0},
    }
    return replace(plain, trajectories=(replace(trajectory, ending=ENDINGS[index], **changes),))


async def test_endings_and_terms_of_pushed_episodes_are_reported_and_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        node = (await service.nodes.join(facts())).node
        lease = await service.nodes.lease(node, 4, wait_s=2)
        await service.nodes.push(node, [interaction(task, index) for index, task in enumerate(lease.tasks)])
        trainer = service.trainer()
        await trainer.attach(version=Version(0), backend="local", is_simulated=False)
        batch = await trainer.pull_batch(version=Version(0), wait_s=2)
        assert batch is not None
        await trainer.report_step(step_of(batch))
        report = await service.control.report()
        sample_page = await service.control.trajectories(
            TrajectoryQuery(ending=Ending.TURNS, term="format", min_term=1.0)
        )
        histogram = await service.control.rewards(RewardQuery(matching=TrajectoryQuery(), term="format"))

    (flow,), (stream,) = report.flows, report.streams
    assert flow.endings == {"won": 2, "turns": 1}
    assert flow.reward_terms == {"format": 0.75, "lengths/a": -1.0}
    assert stream.training.metrics["ending_won"] == pytest.approx(2 / 3)
    assert stream.training.metrics["ending_turns"] == pytest.approx(1 / 3)
    assert (stream.training.metrics["reward_term_format"], stream.training.metrics["reward_term_lengths/a"]) == (
        0.75,
        -1.0,
    )
    assert [sample.ending for sample in sample_page.trajectories] == [Ending.TURNS]
    assert (histogram.endings, histogram.terms) == ({"won": 2, "turns": 1}, {"format": 4, "lengths/a": 4})
    async with running(tmp_path) as service:
        assert (await service.control.report()).flows[0].endings == {"won": 2, "turns": 1}


def test_rollouts_without_endings_and_terms_have_no_metrics() -> None:
    interactions = StepInteractions()
    interactions.add(make.trajectory())
    assert interactions.metrics() == {}


def test_the_number_of_reward_terms_is_bounded() -> None:
    interactions, activity = StepInteractions(), TermActivity([FlowId("train")], now=0.0)
    for index in range(3 * MAX_REWARD_TERMS):
        trajectory = replace(make.trajectory(), reward_terms={f"term{index}": 1.0, "term0": 0.0})
        interactions.add(trajectory)
        activity.add(FlowId("train"), trajectory, now=1.0)
    assert len(interactions.metrics()) == len(activity.means(FlowId("train"), now=1.0)) == MAX_REWARD_TERMS
    assert interactions.metrics()["reward_term_term1"] == 1.0
    assert activity.means(FlowId("train"), now=100.0) == {}
