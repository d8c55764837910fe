"""Interface of experiment trackers, and the steps that they receive."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.training_steps import TrainingStep
from astraflow.contract.training_metrics import ROLLOUT_REWARD
from astraflow.runtime.config.base import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedStep:
    """Metrics of one training step of one policy."""

    policy: PolicyId
    step: int
    """Number of the step, from 1, which is also the version that it produced."""
    at: float
    """Time when the step was acknowledged. Unix seconds."""
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


def tracked(step: TrainingStep) -> TrackedStep:
    """Returns a step with its finite metrics, the mean reward of its rollouts, and the totals of the run."""
    metrics = {
        **step.metrics,
        ROLLOUT_REWARD: step.reward,
        "total_tokens": float(step.total_tokens),
        "total_episodes": float(step.total_episodes),
    }
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return TrackedStep(policy=step.policy, step=step.step, at=step.at, metrics=finite)
