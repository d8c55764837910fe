"""Prefer prompts that are neither too easy nor too hard at present. (Online difficulty filtering, arXiv:2504.03380)"""

import random
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from astraflow.contract.ids import Version
from astraflow.contract.values import Json
from astraflow.dataflow.issuing.epochs import Epochs
from astraflow.dataflow.issuing.selection import Rewards, means
from astraflow.dataflow.issuing.selectors import selectors
from astraflow.dataflow.rows import Rows
from astraflow.runtime.config import Config

_GENERAL_WEIGHT = 0.01
"""Of a group in the mean of the data in general: it looks back on some hundred groups."""


class CurriculumOptions(Config):
    """Which difficulty, and how strictly."""

    target: float = 0.5
    """Mean reward of the prompts that are preferred: where the variance of a reward of 0 or 1 is largest."""
    exploration: float = Field(default=0.2, gt=0, le=1)
    """Share of choices that go through the data in epochs instead, so that no prompt is judged by old news for ever."""
    choices: int = Field(default=8, ge=1)
    """Prompts drawn, of which the nearest to the target is taken: the more, the stricter."""
    smoothing: float = Field(default=0.5, gt=0, le=1)
    """Weight of the latest group in a prompt's recent mean reward."""


@selectors.register("curriculum", options=CurriculumOptions)
class Curriculum:
    """A tournament of a few random prompts, won by the recent mean reward that is nearest to the target.

    A prompt's row is its recent mean reward; one without is taken to be like the data in general. With several policies
    it is that of the policy which is nearest to the target: a prompt is worth while when it is so for any of them.
    """

    def __init__(self, options: CurriculumOptions, size: int, seed: int) -> None:
        self._options = options
        self._size = size
        self._seed = seed
        self._epochs = Epochs(size, seed=seed)
        self._means = Rows[float]()
        self._chosen = 0
        self._explored = 0
        self._general = options.target

    def select(self) -> int:
        """A prompt near the target, or at times just the next one."""
        chance = random.Random(f"curriculum/{self._seed}/{self._chosen}")
        self._chosen += 1
        if chance.random() < self._options.exploration:
            self._explored += 1
            return self._epochs.item(self._explored - 1)
        drawn = [chance.randrange(self._size) for _ in range(self._options.choices)]
        return min(drawn, key=self._distance)

    def observe(self, index: int, rewards: Rewards) -> None:
        """Move the prompt's mean, and a little the general one, towards what it scored."""
        if not rewards:
            return
        weight, target = self._options.smoothing, self._options.target
        mean = min(means(rewards), key=lambda of_policy: abs(of_policy - target))
        before = self._means.get(index)
        self._means.put(index, mean if before is None else (1 - weight) * before + weight * mean)
        self._general += _GENERAL_WEIGHT * (mean - self._general)

    def advance(self, version: Version) -> None:
        """What counts is how old a score is in groups, not in versions."""

    def state_dict(self) -> dict[str, Json]:
        """Counts and the general mean; prompts' means are rows."""
        return {"chosen": self._chosen, "explored": self._explored, "general": self._general}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._chosen, self._explored, self._general = state["chosen"], state["explored"], state["general"]

    def changed_rows(self) -> dict[int, Json]:
        """Means that changed."""
        return self._means.changed()

    def all_rows(self) -> dict[int, Json]:
        """All means."""
        return self._means.all()

    def load_rows(self, rows: Mapping[int, Any]) -> None:
        """Go on with these means."""
        self._means.load(rows)

    def metrics(self) -> dict[str, float]:
        """The general mean, and the share of prompts that were ever scored."""
        return {"general_mean": self._general, "scored_share": len(self._means) / self._size}

    def _distance(self, index: int) -> float:
        mean = self._means.get(index)
        return abs((self._general if mean is None else mean) - self._options.target)
