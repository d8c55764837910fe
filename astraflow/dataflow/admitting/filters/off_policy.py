"""Drop groups that are mostly the work of old versions. (Trajectories of several versions: AReaL, arXiv:2505.24298)"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from astraflow.contract.ids import Version
from astraflow.contract.values import Json
from astraflow.dataflow.admitting.filters import filters
from astraflow.dataflow.admitting.routing import RoutedGroup
from astraflow.runtime.config import Config


class OffPolicyOptions(Config):
    """How old is old, and how much of it is let through."""

    max_age: int = Field(default=1, ge=0)
    """Versions between a token's and the newest: the trainer's, or one that wrote part of the group. More is old."""
    max_share: float = Field(default=0.5, ge=0, lt=1)
    """A group is dropped when a larger share of its model-written tokens is old."""


@filters.register("off_policy", options=OffPolicyOptions)
class OffPolicy:
    """Finer than the staleness bound, which goes by a group's first token: this weighs every token."""

    def __init__(self, options: OffPolicyOptions) -> None:
        self._options = options
        self._old = 0
        self._tokens = 0

    def keep(self, group: RoutedGroup, version: Version) -> bool:
        """Whether enough tokens are recent."""
        written = [
            (span.version, span.length)
            for row in group.rows
            for span in row.trajectory.spans
            if span.version is not None
        ]
        newest = max(version, *(of_span for of_span, _ in written))
        old = sum(length for of_span, length in written if newest - of_span > self._options.max_age)
        tokens = sum(length for _, length in written)
        self._old += old
        self._tokens += tokens
        return old <= self._options.max_share * tokens

    def state_dict(self) -> dict[str, Json]:
        """Tokens seen."""
        return {"old": self._old, "tokens": self._tokens}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._old, self._tokens = state["old"], state["tokens"]

    def metrics(self) -> dict[str, float]:
        """Share of tokens that were old on arrival."""
        return {"old_share": self._old / self._tokens if self._tokens else 0.0}
