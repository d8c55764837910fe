"""Drops groups with truncated, too short or too long trajectories. (Overlong filtering, DAPO, arXiv:2503.14476)"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from astraflow.contract.ids import Version
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.dataflow.admission.filters import filters
from astraflow.dataflow.admission.routing import RoutedGroup
from astraflow.dataflow.plugin_slot import SavedCounts
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy


class LengthOptions(Config):
    """Accepted lengths, and the share of other lengths that a group may have."""

    min_tokens: int = Field(default=1, ge=1)
    """Minimum of model-written tokens in a trajectory."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum of model-written tokens in a trajectory; None: only the length limit of generation applies."""
    allows_truncated: Annotated[bool, SettableBy.AGENT] = False
    """Accept trajectories that ended at their length limit."""
    max_share: float = Field(default=0.5, ge=0, lt=1)
    """A group is dropped when a larger share of its trajectories has a length that is not accepted."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError("min_tokens must not exceed max_tokens")
        return self


@filters.register("length", options=LengthOptions)
class Length(SavedCounts):
    """Drops groups with too many truncated, too short or too long answers.

    The reward of a truncated answer is noise.
    """

    saved = ("truncated", "rows")

    def __init__(self, options: LengthOptions) -> None:
        self._options = options
        self._truncated = 0
        self._rows = 0

    def keep(self, group: RoutedGroup, version: Version) -> bool:
        """Returns whether enough trajectories have an accepted length."""
        trajectories = [row.trajectory for row in group.rows]
        self._rows += len(trajectories)
        self._truncated += sum(trajectory.is_truncated for trajectory in trajectories)
        others = sum(not self._has_allowed_length(trajectory) for trajectory in trajectories)
        return others <= self._options.max_share * len(trajectories)

    def metrics(self) -> dict[str, float]:
        """Returns the share of trajectories that ended at their length limit."""
        return {"truncated_share": self._truncated / self._rows if self._rows else 0.0}

    def _has_allowed_length(self, trajectory: Trajectory) -> bool:
        options, length = self._options, trajectory.model_tokens
        if trajectory.is_truncated and not options.allows_truncated:
            return False
        return options.min_tokens <= length and (options.max_tokens is None or length <= options.max_tokens)
