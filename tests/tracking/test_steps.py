"""Training steps as trackers get them: each once, exactly, after restarts and while the run is away."""

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astraflow.contract.reports.report import Report
from astraflow.contract.training_metrics import ROLLOUT_REWARD
from astraflow.tracking.base import TrackedStep, tracked
from astraflow.tracking.exporter import Exporter
from tests import make
from tests.fakes.recorded_steps import SOLVER, Steps, step


class Record:
    """Tracker that keeps the steps."""

    location = "memory"

    def __init__(self) -> None:
        self.steps: list[TrackedStep] = []

    def log(self, step: TrackedStep) -> None:
        self.steps.append(step)

    def close(self) -> None:
        """Has nothing to close."""


async def reports(*counts: int) -> AsyncIterator[Report]:
    for count in counts:
        yield make.report(make.stream_report(steps=count))


def test_a_step_has_its_finite_metrics_its_reward_and_the_totals() -> None:
    result = tracked(step(4, loss=2.0, kl=math.nan))
    assert (result.step, result.at) == (4, 1004.0)
    assert result.metrics == {"loss": 2.0, ROLLOUT_REWARD: 0.5, "total_tokens": 40.0, "total_episodes": 4.0}


@pytest.mark.anyio
async def test_every_step_is_exported_once_also_by_a_restarted_exporter(tmp_path: Path) -> None:
    record, file = Record(), tmp_path / "exported.json"
    await Exporter(record, file).follow(reports(1, 1, 5), Steps(5))
    assert json.loads(file.read_text()) == {SOLVER: 5}
    await Exporter(record, file).export(Steps(7), {SOLVER: 10**6})
    assert [(step.step, step.metrics["loss"]) for step in record.steps] == [(n, n / 4) for n in range(1, 8)]


@pytest.mark.anyio
async def test_steps_wait_while_the_run_is_away(tmp_path: Path) -> None:
    record = Record()
    await Exporter(record, tmp_path / "exported.json").follow(reports(2, 3), Steps(3, failures=1))
    assert [step.step for step in record.steps] == [1, 2, 3]
