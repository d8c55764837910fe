"""Training steps of a run: one row for each acknowledged step of each policy, exact and without limit."""

from collections.abc import Mapping
from dataclasses import dataclass

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.reports.queries import MAX_ORDINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """One acknowledged training step of one policy. Totals are over all steps of the run so far, over restarts."""

    policy: PolicyId
    """Policy that was trained."""
    step: int
    """Number of the step, from 1."""
    at: float
    """Time when the step was acknowledged. Unix seconds."""
    version: Version
    """Version that the step produced."""
    total_tokens: int
    """Model-written tokens of the trained trajectories, including this step; repeats count again. Count."""
    total_episodes: int
    """Trained episodes, including this step; repeats count again. Count."""
    reward: float
    """Mean reward of the rollouts that arrived between the previous step and this step, before any filter; with the
    batch if fewer than its rows arrived."""
    metrics: Mapping[str, float]
    """Metrics of the step, by the names in `TRAINING_METRICS`: those of the trainer, exactly as it reported them, and
    those of the batch and the rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStepQuery:
    """Selects the steps of a policy, oldest first."""

    policy: PolicyId
    after: int = 0
    """Steps with a greater number."""
    limit: int = 500
    """Largest number of steps of the page."""

    def __post_init__(self) -> None:
        if self.limit < 1 or not 0 <= self.after <= MAX_ORDINAL:
            raise InvalidInput(
                f"cannot read training steps: limit {self.limit} or step {self.after} is out of range; request at "
                f"least 1 step after a step from 0 to {MAX_ORDINAL}",
                code="query.out_of_range",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStepPage:
    """Steps of a policy, oldest first. It holds fewer than the limit when their metrics are long."""

    steps: tuple[TrainingStep, ...]
    has_more: bool
    """True if further steps follow; request them after the last step of the page."""
