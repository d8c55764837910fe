"""Draws prompts uniformly, with replacement."""

import random

from astraflow.contract.ids import Version
from astraflow.dataflow.issuing.selectors import Rewards, selectors
from astraflow.dataflow.plugin_slot import SavedCounts
from astraflow.runtime.config.base import Config


class UniformOptions(Config):
    """Options of the selector `uniform`: none."""


@selectors.register("uniform", options=UniformOptions)
class Uniform(SavedCounts):
    """Draws every prompt with equal probability. Draw n depends on the seed and n alone, so the state is one number."""

    saved = ("draws",)

    def __init__(self, options: UniformOptions, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed
        self._draws = 0

    def select(self) -> int:
        """Returns the next draw."""
        index = random.Random(f"{self._seed}/{self._draws}").randrange(self._size)
        self._draws += 1
        return index

    def observe(self, index: int, rewards: Rewards) -> None:
        """Does nothing: draws do not depend on rewards."""

    def advance(self, version: Version) -> None:
        """Does nothing: draws do not depend on versions."""

    def metrics(self) -> dict[str, float]:
        """Returns the number of draws."""
        return {"draws": float(self._draws)}
