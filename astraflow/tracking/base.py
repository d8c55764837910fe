"""Interface of experiment trackers, and the steps that they receive."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Protocol

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.report import Report, StreamReport
from astraflow.contract.training_metrics import ROLLOUT_REWARD
from astraflow.runtime.config.base import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedStep:
    """Metrics of one training step of one policy."""

    policy: PolicyId
    step: int
    """Number of the step, from 1, which is also the version that it produced."""
    at: float
    """Unix seconds of the report that the metrics are from."""
    metrics: Mapping[str, float]
    """Metric name -> value, natural units. Finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """Run whose metrics are exported."""

    name: str
    folder: Path
    """Folder for the tracker's local files; exists."""
    id: str
    """Stable identifier of this run for the tracker, so that a restarted exporter continues the same record."""


class TrackerOptions(Config):
    """Options that all trackers share."""

    project: str = "astraflow"
    """Project, or experiment, that the run appears in."""


class Tracker(Protocol):
    """Experiment tracker. All methods may block. Built by `trackers.build(spec, run)`."""

    @property
    def location(self) -> str:
        """Folder, database or address of the record, without secrets."""

    def log(self, step: TrackedStep) -> None:
        """Records a step. Steps of a policy arrive in order; after a restart the last one may arrive again."""

    def close(self) -> None:
        """Flushes and ends the record."""


STREAM_FIELDS = (
    "training.wait_fraction",
    "produced_per_s",
    "consumed_per_s",
    "groups.buffered",
    "training.tokens_mean",
    "reward_produced",
)
"""Fields of a stream's report that are exported in addition to the trainer's metrics, under their last names."""


def new_steps(report: Report, exported: Mapping[PolicyId, int]) -> list[TrackedStep]:
    """Returns the steps in the report after the exported ones, oldest first for each policy.

    A report names the metrics of the last step only. Of earlier steps since the previous report, at most the latest 32,
    it holds the rollout reward, or the loss of a policy that trains only on answers, so a policy that makes several
    steps a second has complete rewards but not complete metrics. exported: number of the last exported step of each
    policy.
    """
    return [step for stream in report.streams for step in _stream_steps(report, stream, exported.get(stream.policy, 0))]


def _stream_steps(report: Report, stream: StreamReport, exported: int) -> list[TrackedStep]:
    first = max(exported, stream.training.steps - max(len(stream.training.rewards), 1)) + 1
    return [
        TrackedStep(policy=stream.policy, step=step, at=report.at, metrics=_finite(_metrics(stream, step)))
        for step in range(first, stream.training.steps + 1)
    ]


def _metrics(stream: StreamReport, step: int) -> dict[str, float]:
    age = stream.training.steps - step
    losses, rewards = stream.training.losses, stream.training.rewards
    name, values = ("loss", losses) if losses else (ROLLOUT_REWARD, rewards)
    metrics = {name: values[-1 - age]} if age < len(values) else {}
    if age == 0:
        figures = {field.rpartition(".")[2]: float(attrgetter(field)(stream)) for field in STREAM_FIELDS}
        metrics |= figures | dict(stream.training.metrics)
    return metrics


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
