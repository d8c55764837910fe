"""Drops groups with too many tokens of old versions. (Trajectories of several versions: AReaL, arXiv:2505.24298)"""

from pydantic import Field

from astraflow.contract.ids import Version
from astraflow.dataflow.admission.filters import filters
from astraflow.dataflow.admission.routing import RoutedGroup
from astraflow.dataflow.plugin_slot import SavedCounts
from astraflow.runtime.config.base import Config


class OffPolicyOptions(Config):
    """Age from which a token counts as old, and the accepted share of old tokens."""

    max_age: int = Field(default=1, ge=0)
    """Largest difference in versions between a token and the newest version (the trainer's, or one that wrote part of
    the group); a token with a larger difference is old."""
    max_share: float = Field(default=0.5, ge=0, lt=1)
    """A group is dropped when a larger share of its model-written tokens is old."""


@filters.register("off_policy", options=OffPolicyOptions)
class OffPolicy(SavedCounts):
    """Drops groups with too many tokens of old versions.

    Weighs every token; finer than the staleness bound, which uses a group's first token only.
    """

    saved = ("old", "tokens")

    def __init__(self, options: OffPolicyOptions) -> None:
        self._options = options
        self._old = 0
        self._tokens = 0

    def keep(self, group: RoutedGroup, version: Version) -> bool:
        """Returns whether enough tokens are recent."""
        written_spans = [
            (span.version, span.length)
            for row in group.rows
            for span in row.trajectory.spans
            if span.version is not None
        ]
        newest = max(version, *(span_version for span_version, _ in written_spans))
        old = sum(length for span_version, length in written_spans if newest - span_version > self._options.max_age)
        tokens = sum(length for _, length in written_spans)
        self._old += old
        self._tokens += tokens
        return old <= self._options.max_share * tokens

    def metrics(self) -> dict[str, float]:
        """Returns the share of tokens that were old on arrival."""
        return {"old_share": self._old / self._tokens if self._tokens else 0.0}
