"""Conditions on the trajectories of a group, for the rules of plugins that route groups or order them."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from astraflow.contract.ids import Version
from astraflow.contract.rollouts.spans import Ending
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.dataflow.admission.routing import RoutedGroup
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy


class Conditions(Config):
    """Conditions that must all hold for more than half of a policy's trajectories in a group; none: they always hold.

    The group is decided about as a whole, because advantages compare its members.
    """

    labels: Annotated[dict[str, str], SettableBy.OPERATOR] = Field(default_factory=dict)
    """Labels of the trajectory and their values, such as the game of an environment."""
    roles: Annotated[tuple[str, ...], SettableBy.OPERATOR] = ()
    """Roles, without the suffix of a later attempt; empty: any."""
    endings: Annotated[tuple[Ending, ...], SettableBy.AGENT] = ()
    """Reasons for the end of an interaction; empty: any, and single answers."""
    reward_at_least: float | None = None
    reward_below: float | None = None
    age_at_least: int | None = Field(default=None, ge=1)
    """Versions between the trainer's version and the oldest version that wrote a token."""

    @model_validator(mode="after")
    def _some_reward_matches(self) -> Self:
        low, high = self.reward_at_least, self.reward_below
        if low is not None and high is not None and low >= high:
            raise ValueError(f"no reward is at least {low:g} and below {high:g}: exchange the two, or leave one out")
        return self

    @property
    def always_hold(self) -> bool:
        """True without any condition."""
        bounds = (self.reward_at_least, self.reward_below, self.age_at_least)
        return not (self.labels or self.roles or self.endings) and all(bound is None for bound in bounds)

    def hold_for(self, group: RoutedGroup, version: Version) -> bool:
        """Returns whether the conditions hold for more than half of the trajectories. version: the trainer's."""
        if self.always_hold:
            return True
        held = sum(self._hold(row.trajectory, version) for row in group.rows)
        return 2 * held > len(group.rows)

    def _hold(self, trajectory: Trajectory, version: Version) -> bool:
        oldest = trajectory.oldest_version
        return (
            all(trajectory.labels.get(name) == value for name, value in self.labels.items())
            and (not self.roles or trajectory.base_role in self.roles)
            and (not self.endings or trajectory.ending in self.endings)
            and (self.reward_at_least is None or trajectory.reward >= self.reward_at_least)
            and (self.reward_below is None or trajectory.reward < self.reward_below)
            and (self.age_at_least is None or (oldest is not None and version - oldest >= self.age_at_least))
        )
