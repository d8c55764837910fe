"""Drop groups that were cut off, or are too short or too long. (Overlong filtering, DAPO, arXiv:2503.14476)"""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from astraflow.contract.ids import Version
from astraflow.contract.trajectories import Trajectory
from astraflow.contract.values import Json
from astraflow.dataflow.admitting.filters import filters
from astraflow.dataflow.admitting.routing import RoutedGroup
from astraflow.runtime.config import Config


class LengthOptions(Config):
    """Which lengths are fine, and how many others a group may have."""

    min_tokens: int = Field(default=1, ge=1)
    """Fewest model-written tokens of a trajectory."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most model-written tokens; without it only the length limit of generation counts."""
    allows_truncated: bool = False
    """A trajectory that ended at its length limit is fine all the same."""
    max_share: float = Field(default=0.5, ge=0, lt=1)
    """A group is dropped when a larger share of its trajectories has another length."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError("min_tokens must not be above max_tokens")
        return self


@filters.register("length", options=LengthOptions)
class Length:
    """The reward of an answer that was cut off says little about it: a group of mostly such ones teaches noise."""

    def __init__(self, options: LengthOptions) -> None:
        self._options = options
        self._truncated = 0
        self._rows = 0

    def keep(self, group: RoutedGroup, version: Version) -> bool:
        """Whether enough trajectories have a fine length."""
        trajectories = [row.trajectory for row in group.rows]
        self._rows += len(trajectories)
        self._truncated += sum(trajectory.is_truncated for trajectory in trajectories)
        others = sum(not self._is_fine(trajectory) for trajectory in trajectories)
        return others <= self._options.max_share * len(trajectories)

    def state_dict(self) -> dict[str, Json]:
        """Trajectories seen."""
        return {"truncated": self._truncated, "rows": self._rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._truncated, self._rows = state["truncated"], state["rows"]

    def metrics(self) -> dict[str, float]:
        """Share of trajectories that ended at their length limit."""
        return {"truncated_share": self._truncated / self._rows if self._rows else 0.0}

    def _is_fine(self, trajectory: Trajectory) -> bool:
        options, length = self._options, trajectory.model_tokens
        if trajectory.is_truncated and not options.allows_truncated:
            return False
        return options.min_tokens <= length and (options.max_tokens is None or length <= options.max_tokens)
