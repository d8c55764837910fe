"""The port of filters: the data algorithm after rollout."""

from collections.abc import Mapping
from typing import Any, Protocol

from astraflow.contract.ids import Version
from astraflow.contract.values import Json
from astraflow.dataflow.admitting.routing import RoutedGroup


class Filter(Protocol):
    """Decides whether a finished group is worth training on. Built by `filters.build(spec)`."""

    def keep(self, group: RoutedGroup, version: Version) -> bool:
        """False drops the group, counted under the filter's kind. `version` is the trainer's now."""

    def state_dict(self) -> dict[str, Json]:
        """What `load_state_dict` needs, as JSON."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""

    def metrics(self) -> dict[str, float]:
        """Its own figures for the report."""
