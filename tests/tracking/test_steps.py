"""Steps that are extracted from reports."""

import math

from astraflow.contract.ids import PolicyId
from astraflow.contract.training_metrics import ROLLOUT_REWARD
from astraflow.tracking.base import new_steps
from tests import make

SOLVER = PolicyId("solver")


def test_only_steps_after_the_exported_ones_are_returned() -> None:
    stream = make.stream_report(steps=5, rewards=(0.1, 0.2, 0.3), metrics={"loss": 2.0})
    report = make.report(stream)
    assert [step.step for step in new_steps(report, {SOLVER: 3})] == [4, 5]
    assert new_steps(report, {SOLVER: 5}) == []


def test_the_last_step_has_the_metrics_and_earlier_ones_the_rollout_reward() -> None:
    stream = make.stream_report(steps=5, rewards=(0.1, 0.2, 0.3), metrics={"loss": 2.0, "kl": math.nan})
    first, _, last = new_steps(make.report(stream), {})
    assert (first.step, first.metrics) == (3, {ROLLOUT_REWARD: 0.1})
    assert (last.step, last.metrics["loss"], last.metrics[ROLLOUT_REWARD]) == (5, 2.0, 0.3)
    assert "kl" not in last.metrics


def test_a_policy_without_a_step_yields_nothing() -> None:
    assert new_steps(make.report(make.stream_report()), {}) == []


def test_a_policy_that_trains_on_answers_has_the_loss_of_each_step() -> None:
    stream = make.stream_report(steps=5, rewards=(1.0, 1.0), losses=(0.7, 0.6), metrics={"loss": 0.6})
    first, last = new_steps(make.report(stream), {})
    assert first.metrics == {"loss": 0.7}
    assert last.metrics["loss"] == 0.6
    assert ROLLOUT_REWARD not in last.metrics
