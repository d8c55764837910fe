"""Keeps every group."""

from collections.abc import Mapping
from typing import Any

from astraflow.contract.ids import Version
from astraflow.contract.values import Json
from astraflow.dataflow.admission.filters import filters
from astraflow.dataflow.admission.routing import RoutedGroup
from astraflow.runtime.config.base import Config


class KeepAllOptions(Config):
    """Options of the filter `keep_all`: none."""


@filters.register("keep_all", options=KeepAllOptions)
class KeepAll:
    """Keeps every group."""

    def __init__(self, options: KeepAllOptions) -> None:
        pass

    def keep(self, group: RoutedGroup, version: Version) -> bool:
        return True

    def state_dict(self) -> dict[str, Json]:
        """Returns an empty state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Does nothing: there is no state."""

    def metrics(self) -> dict[str, float]:
        """Returns no metrics."""
        return {}
