"""Drops groups without a difference of rewards: they carry no signal. (Dynamic sampling, DAPO, arXiv:2503.14476)"""

from pydantic import Field

from astraflow.contract.ids import Version
from astraflow.dataflow.admission.filters import MIN_REWARD_SPREAD, filters
from astraflow.dataflow.admission.routing import RoutedGroup
from astraflow.dataflow.plugin_slot import SavedCounts
from astraflow.runtime.config.base import Config


class InformativeOptions(Config):
    """Options of the filter `informative`."""

    min_spread: float = Field(default=MIN_REWARD_SPREAD, ge=0)
    """The largest minus the smallest reward must exceed this."""


@filters.register("informative", options=InformativeOptions)
class Informative(SavedCounts):
    """Drops groups of equal rewards: their group-relative advantage is zero, so they only dilute the batch.

    If a policy has several roles in its workflow, the rewards of one role must differ. A dropped group is easy when
    every role succeeds.
    """

    saved = ("easy", "hard")

    def __init__(self, options: InformativeOptions) -> None:
        self._min_spread = options.min_spread
        self._easy = 0
        self._hard = 0

    def keep(self, group: RoutedGroup, version: Version) -> bool:
        """Returns whether the rewards of a role differ."""
        rewards = group.role_rewards().values()
        if any(max(values) - min(values) > self._min_spread for values in rewards):
            return True
        if min(sum(values) / len(values) for values in rewards) > 0.5:
            self._easy += 1
        else:
            self._hard += 1
        return False

    def metrics(self) -> dict[str, float]:
        """Returns the dropped groups by kind."""
        return {"dropped_easy": float(self._easy), "dropped_hard": float(self._hard)}
