"""Keeps every group."""

from astraflow.contract.ids import Version
from astraflow.dataflow.admission.filters import filters
from astraflow.dataflow.admission.routing import RoutedGroup
from astraflow.dataflow.plugin_slot import SavedCounts
from astraflow.runtime.config.base import Config


class KeepAllOptions(Config):
    """Options of the filter `keep_all`: none."""


@filters.register("keep_all", options=KeepAllOptions)
class KeepAll(SavedCounts):
    """Keeps every group."""

    def __init__(self, options: KeepAllOptions) -> None:
        pass

    def keep(self, group: RoutedGroup, version: Version) -> bool:
        return True
