"""Keep every group."""

from collections.abc import Mapping
from typing import Any

from astraflow.contract.ids import Version
from astraflow.contract.values import Json
from astraflow.dataflow.admitting.filters import filters
from astraflow.dataflow.admitting.routing import RoutedGroup
from astraflow.runtime.config import Config


class KeepAllOptions(Config):
    """Nothing to set."""


@filters.register("keep_all", options=KeepAllOptions)
class KeepAll:
    """The filter that never refuses."""

    def __init__(self, options: KeepAllOptions) -> None:
        pass

    def keep(self, group: RoutedGroup, version: Version) -> bool:
        """Always."""
        return True

    def state_dict(self) -> dict[str, Json]:
        """None of its own."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is nothing to load."""

    def metrics(self) -> dict[str, float]:
        """None of its own."""
        return {}
