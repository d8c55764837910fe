"""Each group once, in the order of its deadline, its arrival or its freshness."""

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from typing import Any

from astraflow.contract.ids import Version
from astraflow.contract.values import Json
from astraflow.dataflow.serving.buffer import Buffered
from astraflow.dataflow.serving.orders import Order, place
from astraflow.dataflow.serving.samplers import samplers
from astraflow.runtime.config import Config


class FreshOptions(Config):
    """Which groups go first."""

    order: Order = "deadline"
    """`deadline`: oldest version that is still admissible; `fifo`: oldest arrival; `freshest`: newest version."""


@samplers.register("fresh", options=FreshOptions)
class Fresh:
    """Every buffered group is a candidate until it is used once."""

    def __init__(self, options: FreshOptions) -> None:
        self._order: Order = options.order

    def fresh_count(self, count: int, trained: int) -> int:
        """All of them."""
        return count

    def sample(
        self, fresh: Sequence[Buffered], trained: Sequence[Buffered], count: int, version: Version
    ) -> list[Buffered]:
        """The first `count` in the chosen order; ties by arrival."""
        return nsmallest(count, fresh, key=lambda candidate: place(candidate, self._order))

    def state_dict(self) -> dict[str, Json]:
        """None of its own."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is nothing to load."""

    def metrics(self) -> dict[str, float]:
        """None of its own."""
        return {}
