"""Epochs over the data: every prompt once before any comes again."""

from collections.abc import Mapping
from typing import Any

from astraflow.contract.ids import Version
from astraflow.contract.values import Json
from astraflow.dataflow.issuing.epochs import Epochs
from astraflow.dataflow.issuing.selection import Rewards
from astraflow.dataflow.issuing.selectors import selectors
from astraflow.runtime.config import Config


class SequentialOptions(Config):
    """In which order."""

    is_shuffled: bool = True
    """A new order each epoch, from the seed; False keeps the order of the data."""


@selectors.register("sequential", options=SequentialOptions)
class Sequential:
    """Choice n depends on the seed and n alone, so that the state is one number, whatever the size of the data."""

    def __init__(self, options: SequentialOptions, size: int, seed: int) -> None:
        self._size = size
        self._epochs = Epochs(size, seed=seed, is_shuffled=options.is_shuffled)
        self._chosen = 0

    def select(self) -> int:
        """The next of the epoch."""
        index = self._epochs.item(self._chosen)
        self._chosen += 1
        return index

    def observe(self, index: int, rewards: Rewards) -> None:
        """Rewards do not matter here."""

    def advance(self, version: Version) -> None:
        """Versions do not matter here."""

    def state_dict(self) -> dict[str, Json]:
        """How many were chosen."""
        return {"chosen": self._chosen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the next."""
        self._chosen = state["chosen"]

    def metrics(self) -> dict[str, float]:
        """Epochs so far."""
        return {"epochs": self._chosen / self._size}
