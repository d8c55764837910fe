"""Each group once, in the order of its deadline, its arrival or its freshness.

Earliest deadline first is the optimal order for jobs with deadlines on one server (Liu and Layland, 1973); here the
deadline is the last version a group may still be trained at.
"""

from collections.abc import Sequence
from heapq import nsmallest
from typing import Literal

from astraflow.contract.ids import Version
from astraflow.dataflow.serving.buffer import Buffered
from astraflow.dataflow.serving.samplers import samplers
from astraflow.runtime.config import Config


class FreshOptions(Config):
    """Which groups go first."""

    order: Literal["deadline", "fifo", "freshest"] = "deadline"
    """`deadline`: oldest version that is still admissible; `fifo`: oldest arrival; `freshest`: newest version."""


@samplers.register("fresh", options=FreshOptions)
class Fresh:
    """Every buffered group is a candidate until it is used once."""

    def __init__(self, options: FreshOptions) -> None:
        self._order = options.order

    def sample(self, candidates: Sequence[Buffered], count: int, version: Version) -> list[Buffered]:
        """The first `count` in the chosen order; ties by arrival."""
        return nsmallest(count, candidates, key=self._key)

    def metrics(self) -> dict[str, float]:
        """None of its own."""
        return {}

    def _key(self, candidate: Buffered) -> tuple[int, int]:
        match self._order:
            case "deadline":
                return (candidate.born, candidate.arrival)
            case "fifo":
                return (0, candidate.arrival)
            case "freshest":
                return (-candidate.born, candidate.arrival)
