"""Extraction of training steps from a run's reports."""

import math
from collections.abc import Mapping

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.report import Report, StreamReport
from astraflow.tracking.base import TrackedStep

STREAM_FIELDS = ("wait_fraction", "produced_per_s", "consumed_per_s", "buffered", "tokens_mean", "reward_produced")
"""Fields of a stream's report that are exported in addition to the trainer's metrics."""

ROLLOUT_REWARD = "reward_rollouts"
"""Mean reward of the rollouts that arrived between the previous step and this one, before any filter."""


def new_steps(report: Report, exported: Mapping[PolicyId, int]) -> list[TrackedStep]:
    """Returns the steps in the report after the exported ones, oldest first for each policy.

    A report names the metrics of the last step only. Of earlier steps since the previous report, at most the latest 32,
    it holds the rollout reward, so a policy that makes several steps a second has complete rewards but not complete
    metrics. exported: number of the last exported step of each policy.
    """
    return [step for stream in report.streams for step in _stream_steps(report, stream, exported.get(stream.policy, 0))]


def _stream_steps(report: Report, stream: StreamReport, exported: int) -> list[TrackedStep]:
    first = max(exported, stream.steps - max(len(stream.rewards), 1)) + 1
    return [
        TrackedStep(policy=stream.policy, step=step, at=report.at, metrics=_finite(_metrics(stream, step)))
        for step in range(first, stream.steps + 1)
    ]


def _metrics(stream: StreamReport, step: int) -> dict[str, float]:
    age = stream.steps - step
    metrics = {ROLLOUT_REWARD: stream.rewards[-1 - age]} if age < len(stream.rewards) else {}
    if age == 0:
        metrics |= {name: float(getattr(stream, name)) for name in STREAM_FIELDS} | dict(stream.metrics)
    return metrics


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
