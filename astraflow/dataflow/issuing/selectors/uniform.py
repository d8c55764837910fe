"""Every prompt equally likely, drawn with replacement."""

import random
from collections.abc import Mapping
from typing import Any

from astraflow.contract.ids import Version
from astraflow.contract.values import Json
from astraflow.dataflow.issuing.selection import Rewards
from astraflow.dataflow.issuing.selectors import selectors
from astraflow.runtime.config import Config


class UniformOptions(Config):
    """Uniform sampling has nothing to set."""


@selectors.register("uniform", options=UniformOptions)
class Uniform:
    """Draw n depends on the seed and n alone, so that the state is one number."""

    def __init__(self, options: UniformOptions, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed
        self._draws = 0

    def select(self) -> int:
        """The next draw."""
        index = random.Random(f"{self._seed}/{self._draws}").randrange(self._size)
        self._draws += 1
        return index

    def observe(self, index: int, rewards: Rewards) -> None:
        """Rewards do not matter here."""

    def advance(self, version: Version) -> None:
        """Versions do not matter here."""

    def state_dict(self) -> dict[str, Json]:
        """How many draws were made."""
        return {"draws": self._draws}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the next draw."""
        self._draws = state["draws"]

    def metrics(self) -> dict[str, float]:
        """Draws so far."""
        return {"draws": float(self._draws)}
