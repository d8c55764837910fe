"""Facts that the checks read, and windows over them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from astraflow.contract.ids import PolicyId
from astraflow.contract.learning_faults import LearningFault
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.contract.reports.queries import SampledGroup
from astraflow.contract.reports.report import EVALUATED, SampledTrajectory
from astraflow.contract.reports.training_steps import TrainingStep
from astraflow.contract.values import Values

Floats = npt.NDArray[np.float64]

WINDOW = 10
"""Steps over which a value is averaged before it is compared: single steps are noisy."""

ENOUGH_STEPS = 3 * WINDOW
"""Steps before which no change between first and latest steps is judged."""

_ERRORS = 3.0
"""Standard errors beyond which a difference of two means is not noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """Means of two windows of a series."""

    before: float
    after: float
    is_clear: bool
    """Whether the difference is beyond noise."""

    @property
    def change(self) -> float:
        """Returns the difference."""
        return self.after - self.before


class Course:
    """Metrics of consecutive steps of one policy."""

    def __init__(self, steps: Sequence[TrainingStep]) -> None:
        """steps: oldest first; steps between the first and the latest ones may be missing."""
        self.steps = steps

    def __len__(self) -> int:
        return len(self.steps)

    @cached_property
    def rewards(self) -> Floats:
        """Mean reward of the rollouts before each step."""
        return np.array([step.reward for step in self.steps])

    def values(self, name: str) -> Floats:
        """Returns a metric of each step; NaN where a step lacks it."""
        return np.array([step.metrics.get(name, np.nan) for step in self.steps])

    def latest(self, name: str, steps: int = WINDOW) -> float | None:
        """Returns the mean over the latest steps; None if fewer than half of them have the metric."""
        return _mean(self.values(name)[-steps:])

    def shift(self, name: str) -> Shift | None:
        """Returns the change of a metric from the first to the latest steps; None without enough of them."""
        return shift(self.values(name))

    @cached_property
    def reward_shift(self) -> Shift | None:
        """Change of the reward from the first to the latest steps."""
        return shift(self.rewards)

    @cached_property
    def best(self) -> tuple[int, float] | None:
        """Last step and mean of the window with the highest reward; None without enough steps."""
        if len(self) < ENOUGH_STEPS:
            return None
        means = np.convolve(self.rewards, np.ones(WINDOW) / WINDOW, "valid")
        index = int(means.argmax())
        return self.steps[index + WINDOW - 1].step, float(means[index])


def shift(values: Floats) -> Shift | None:
    """Returns the change between the first and the latest values; None without enough of them.

    Noise of both windows is taken from the differences of neighbouring values, so that a trend within a window does not
    count as noise.
    """
    known = values[np.isfinite(values)]
    if len(known) < ENOUGH_STEPS:
        return None
    first, last = known[:WINDOW], known[-WINDOW:]
    noise = sum(float(np.square(np.diff(part)).mean()) / 2 for part in (first, last))
    change = abs(float(last.mean() - first.mean()))
    return Shift(
        before=float(first.mean()),
        after=float(last.mean()),
        is_clear=change > _ERRORS * (noise / WINDOW) ** 0.5 and change > 1e-9,
    )


@dataclass(frozen=True, kw_only=True)
class LearningFacts:
    """Facts of one policy at one time."""

    policy: PolicyId
    steps: Sequence[TrainingStep]
    """The first and the latest steps, oldest first."""
    groups: Sequence[SampledGroup] = ()
    """Newest sampled groups, with any outcome, of training and of evaluations."""
    rollouts: Sequence[SampledTrajectory] = ()
    """Newest sampled rollouts, failed ones too."""
    rounds: Sequence[EvaluationReport] = ()
    """Ended rounds of evaluations, oldest first."""
    others: Mapping[PolicyId, Sequence[TrainingStep]]
    """Steps of the other policies of the run."""
    is_learned: bool = False
    """True when the run has met its stop condition: solved prompts are then no fault."""

    @cached_property
    def course(self) -> Course:
        """Metrics of the steps."""
        return Course(self.steps)

    @cached_property
    def trained(self) -> list[SampledTrajectory]:
        """Rollouts with a result that were made for training."""
        return [rollout for rollout in self.rollouts if rollout.failure is None and rollout.outcome != EVALUATED]

    @cached_property
    def reward_range(self) -> tuple[float, float]:
        """Lowest and highest reward of the latest rollouts and of all steps."""
        rewards = [*(rollout.reward for rollout in self.trained), *(step.reward for step in self.steps)]
        return (min(rewards), max(rewards)) if rewards else (0.0, 0.0)

    @property
    def is_rewarded(self) -> bool:
        """False for a policy that trains on the answers of a data set."""
        return "nll" not in self.steps[-1].metrics

    @property
    def spread(self) -> float:
        """Width of the range of rewards."""
        lowest, highest = self.reward_range
        return highest - lowest

    @property
    def is_mostly_rewarded(self) -> bool:
        """Whether the mean of the latest rollouts is in the upper quarter of the range: what they do then works."""
        lowest, highest = self.reward_range
        rewards = [rollout.reward for rollout in self.trained]
        return bool(rewards) and highest > lowest and sum(rewards) / len(rewards) > highest - (highest - lowest) / 4


Found = Iterator[tuple[LearningFault, Values]]
"""Faults with their figures."""


def _mean(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if 2 * len(known) >= len(values) > 0 else None
