"""Samples each group once, in the order of deadline, arrival or freshness."""

from collections.abc import Sequence
from typing import Annotated

from astraflow.contract.ids import Version
from astraflow.dataflow.plugin_slot import SavedCounts
from astraflow.dataflow.serving.buffer import BufferedGroup, GroupOrder, filled, sort_key
from astraflow.dataflow.serving.samplers import samplers
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy


class FreshOptions(Config):
    """Options of the sampler `fresh`."""

    order: Annotated[GroupOrder, SettableBy.AGENT] = "deadline"
    """`deadline`: oldest admissible version first; `fifo`: oldest arrival first; `freshest`: newest version first."""


@samplers.register("fresh", options=FreshOptions)
class Fresh(SavedCounts):
    """Uses every buffered group once."""

    def __init__(self, options: FreshOptions) -> None:
        self._order: GroupOrder = options.order

    def fresh_count(self, count: int, trained: int) -> int:
        """Returns `count`: all groups are fresh."""
        return count

    def sample(
        self, fresh: Sequence[BufferedGroup], trained: Sequence[BufferedGroup], count: int, version: Version
    ) -> list[BufferedGroup]:
        """Returns the first groups in the configured order, ties by arrival."""
        return filled(sorted(fresh, key=lambda candidate: sort_key(candidate, self._order)), count)
