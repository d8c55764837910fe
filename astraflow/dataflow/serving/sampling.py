"""The port of samplers: the data algorithm at the batch."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from astraflow.contract.ids import Version
from astraflow.contract.values import Json
from astraflow.dataflow.serving.buffer import Buffered


class Sampler(Protocol):
    """Chooses the groups of a batch. Built by `samplers.build(spec)`."""

    def fresh_count(self, count: int, trained: int) -> int:
        """How many of a batch of `count` groups are to be fresh, 1 to `count`, when `trained` groups could be replayed.

        A batch waits for that many. It never grows with `trained`, and `count` means that nothing is ever replayed.
        """

    def sample(
        self, fresh: Sequence[Buffered], trained: Sequence[Buffered], count: int, version: Version
    ) -> list[Buffered]:
        """`count` different groups, at most `count - fresh_count(count, len(trained))` of them trained before.

        All that are offered are admissible at `version`, and there are at least `fresh_count` fresh ones. Fresh groups
        are by arrival, trained ones by when they were trained last.
        """

    def state_dict(self) -> dict[str, Json]:
        """What `load_state_dict` needs, as JSON."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""

    def metrics(self) -> dict[str, float]:
        """Its own figures for the report."""
