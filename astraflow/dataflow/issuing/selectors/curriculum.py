"""Prefers prompts that are currently neither too easy nor too hard. (Online difficulty filtering, arXiv:2504.03380)"""

import random
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from astraflow.contract.ids import Version
from astraflow.contract.values import Json
from astraflow.dataflow.issuing.selectors import Rewards, mean_rewards, selectors
from astraflow.dataflow.plugin_slot import SavedCounts
from astraflow.dataflow.storage.prompt_rows import PromptRows
from astraflow.datasets.shuffle import EpochOrder
from astraflow.runtime.config.base import Config

_GENERAL_WEIGHT = 0.01
"""Weight of a group in the general mean, which covers about the latest hundred groups."""


class CurriculumOptions(Config):
    """Target difficulty, and how strictly it is selected."""

    target: float = 0.5
    """Mean reward of preferred prompts; by default where the variance of a binary reward is largest."""
    exploration: float = Field(default=0.2, gt=0, le=1)
    """Share of choices that follow epochs over the data instead, so that every prompt's mean is renewed eventually."""
    choices: int = Field(default=8, ge=1)
    """Prompts drawn per choice; the nearest to the target is taken. A larger number is stricter."""
    smoothing: float = Field(default=0.5, gt=0, le=1)
    """Weight of the latest group in a prompt's recent mean reward."""


@selectors.register("curriculum", options=CurriculumOptions)
class Curriculum(SavedCounts):
    """Draws a few random prompts and takes the one whose recent mean reward is nearest to the target.

    The row of a prompt is its recent mean reward; a prompt without a row counts as the general mean. With several
    policies the mean of the policy nearest to the target counts: a prompt is useful when it is so for any policy.
    """

    saved = ("chosen", "explored", "general")

    def __init__(self, options: CurriculumOptions, size: int, seed: int) -> None:
        self._options = options
        self._size = size
        self._seed = seed
        self._epochs = EpochOrder(size, seed=seed)
        self._means = PromptRows[float]()
        self._chosen = 0
        self._explored = 0
        self._general = options.target

    def select(self) -> int:
        """Returns a prompt near the target, or the next one of the epoch for exploration."""
        rng = random.Random(f"curriculum/{self._seed}/{self._chosen}")
        self._chosen += 1
        if rng.random() < self._options.exploration:
            self._explored += 1
            return self._epochs.item(self._explored - 1)
        drawn = [rng.randrange(self._size) for _ in range(self._options.choices)]
        return min(drawn, key=self._distance)

    def observe(self, index: int, rewards: Rewards) -> None:
        """Moves the mean of the prompt, and slightly the general mean, towards the group's mean reward."""
        if not rewards:
            return
        weight, target = self._options.smoothing, self._options.target
        mean = min(mean_rewards(rewards), key=lambda policy_mean: abs(policy_mean - target))
        previous = self._means.get(index)
        self._means.put(index, mean if previous is None else (1 - weight) * previous + weight * mean)
        self._general += _GENERAL_WEIGHT * (mean - self._general)

    def advance(self, version: Version) -> None:
        """Does nothing: means age by groups, not by versions."""

    def changed_rows(self) -> dict[int, Json]:
        return self._means.changed()

    def all_rows(self) -> dict[int, Json]:
        return self._means.all()

    def load_rows(self, rows: Mapping[int, Any]) -> None:
        """Restores the means. Raises: TypeError, ValueError for rows of another shape."""
        self._means.load({index: float(mean) for index, mean in rows.items()})

    def metrics(self) -> dict[str, float]:
        """Returns the general mean and the share of prompts with a mean."""
        return {"general_mean": self._general, "scored_share": len(self._means) / self._size}

    def _distance(self, index: int) -> float:
        mean = self._means.get(index)
        return abs((self._general if mean is None else mean) - self._options.target)
