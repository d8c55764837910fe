"""Interface of filters: the data algorithm after rollout."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.values import Json
from astraflow.dataflow.admission.routing import RoutedGroup

MIN_REWARD_SPREAD = 1e-6
"""Rewards that differ by at most this count as equal, unless options set another value."""


class Filter(Protocol):
    """Decides whether a finished group is worth training on. Built by `filters.build(spec)`."""

    def keep(self, group: RoutedGroup, version: Version) -> bool:
        """Returns whether to keep the group; a drop counts under the filter's kind. version: the trainer's."""

    def state_dict(self) -> dict[str, Json]:
        """Returns the state for `load_state_dict`, as JSON."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state."""

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of the plugin for the report."""


@runtime_checkable
class PolicyChecked(Protocol):
    """A filter whose options name policies."""

    def check_policies(self, policies: tuple[PolicyId, ...]) -> None:
        """Checks the options against the policies that the flow trains. Raises: ValueError with cause and remedy."""
