"""Built-in samplers, by kind."""

from collections.abc import Sequence
from typing import Protocol

from astraflow.contract.ids import Version
from astraflow.dataflow.plugin_slot import Plugin
from astraflow.dataflow.serving.buffer import BufferedGroup
from astraflow.runtime.plugins import Registry, modules


class Sampler(Plugin, Protocol):
    """Chooses the groups of a batch. Built by `samplers.build(spec)`."""

    def fresh_count(self, count: int, trained: int) -> int:
        """Returns how much of a batch of size `count` must be fresh, 1 to `count`, when `trained` could be replayed.

        All three are numbers of groups, or of distinct tokens where those size batches: sums of `BufferedGroup.size`.
        A batch waits for that much. The result never grows with `trained`; `count` means that nothing is replayed.
        """

    def sample(
        self, fresh: Sequence[BufferedGroup], trained: Sequence[BufferedGroup], count: int, version: Version
    ) -> list[BufferedGroup]:
        """Returns different groups that reach the size `count` with the last of them, as `filled` does.

        At most `count - fresh_count(count, size of trained)` is filled up with groups that were trained before.

        All candidates are admissible at `version`, and at least `fresh_count` is fresh. Fresh groups are ordered by
        arrival, trained groups by their last training.

        """


samplers: Registry[Sampler] = Registry(
    "sampler",
    built_in=modules(__name__, "fresh priority replay"),
)
