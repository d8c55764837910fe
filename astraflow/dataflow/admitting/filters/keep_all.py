"""Keep every group."""

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

    def keep(self, group: RoutedGroup) -> bool:
        """Always."""
        return True

    def metrics(self) -> dict[str, float]:
        """None of its own."""
        return {}
