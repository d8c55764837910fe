"""The port of filters: the data algorithm after rollout."""

from typing import Protocol

from astraflow.dataflow.admitting.routing import RoutedGroup


class Filter(Protocol):
    """Decides whether a finished group is worth training on. Built by `filters.build(spec)`."""

    def keep(self, group: RoutedGroup) -> bool:
        """False drops the group, counted under the filter's kind."""

    def metrics(self) -> dict[str, float]:
        """Its own figures for the report."""
