"""Epochs over the data: every prompt once before any is repeated."""

from typing import Annotated

from astraflow.contract.ids import Version
from astraflow.dataflow.issuing.selectors import Rewards, selectors
from astraflow.dataflow.plugin_slot import SavedCounts
from astraflow.datasets.shuffle import EpochOrder
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy


class SequentialOptions(Config):
    """Options of the selector `sequential`."""

    is_shuffled: Annotated[bool, SettableBy.AGENT] = True
    """Shuffle each epoch by the seed; False keeps the order of the data."""


@selectors.register("sequential", options=SequentialOptions)
class Sequential(SavedCounts):
    """Chooses every prompt once before any is repeated. Choice n depends on the seed and n alone, so the state is one
    number."""

    saved = ("chosen",)

    def __init__(self, options: SequentialOptions, size: int, seed: int) -> None:
        self._size = size
        self._epochs = EpochOrder(size, seed=seed, is_shuffled=options.is_shuffled)
        self._chosen = 0

    def select(self) -> int:
        """Returns the next prompt of the epoch."""
        index = self._epochs.item(self._chosen)
        self._chosen += 1
        return index

    def observe(self, index: int, rewards: Rewards) -> None:
        """Does nothing: choices do not depend on rewards."""

    def advance(self, version: Version) -> None:
        """Does nothing: choices do not depend on versions."""

    def metrics(self) -> dict[str, float]:
        """Returns the epochs so far."""
        return {"epochs": self._chosen / self._size}
