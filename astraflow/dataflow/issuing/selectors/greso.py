"""Skips prompts whose recent groups had no spread. (GRESO, Act Only When It Pays, arXiv:2506.02177)"""

import random
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from astraflow.contract.ids import Version
from astraflow.contract.values import Json
from astraflow.dataflow.admission.filters import MIN_REWARD_SPREAD
from astraflow.dataflow.issuing.selectors import (
    Rewards,
    has_spread,
    mean_rewards,
    selectors,
    with_several_rewards,
)
from astraflow.dataflow.plugin_slot import SavedCounts
from astraflow.dataflow.storage.prompt_rows import PromptRows
from astraflow.datasets.shuffle import EpochOrder
from astraflow.runtime.config.base import Config

EASY, HARD = "easy", "hard"


class GresoOptions(Config):
    """Probabilities of skipping. Defaults are the paper's; published recipes use the floors 0.05 and 0.30."""

    start: float = Field(default=0.5, ge=0.01, le=0.99)
    """Initial probability of issuing a prompt after one group without spread; after z such groups its z-th power."""
    floor_easy: float = Field(default=0.10, ge=0.01, le=1)
    """Lowest probability of issuing a prompt that was always solved."""
    floor_hard: float = Field(default=0.40, ge=0.01, le=1)
    """Lowest probability of issuing a prompt that was never solved."""
    target_easy: float = Field(default=0.083, ge=0, le=1)
    """Share of all groups that may be easy and without spread before the probability of such prompts is lowered."""
    target_hard: float = Field(default=0.167, ge=0, le=1)
    """The same share for hard groups."""
    step: float = Field(default=0.01, gt=0, le=0.5)
    """Change of the probabilities per version."""
    min_spread: float = Field(default=MIN_REWARD_SPREAD, ge=0)
    """The largest minus the smallest reward must exceed this; the same as the option of the filter `informative`."""


@selectors.register("greso", options=GresoOptions)
class Greso(SavedCounts):
    """Skips prompts without recent spread of rewards at random, the more likely the longer their streak.

    The other prompts follow epochs over the data. The row of a prompt is its streak of groups without spread: positive
    for easy groups, negative for hard ones. With several policies a group has spread when any of them can learn from
    it, and is easy when all policies succeed.
    """

    saved = ("place", "skipped", "chance", "seen")

    def __init__(self, options: GresoOptions, size: int, seed: int) -> None:
        self._floor = {EASY: options.floor_easy, HARD: options.floor_hard}
        self._target = {EASY: options.target_easy, HARD: options.target_hard}
        self._step = options.step
        self._min_spread = options.min_spread
        self._size = size
        self._seed = seed
        self._epochs = EpochOrder(size, seed=seed)
        self._streaks = PromptRows[int]()
        self._place = 0
        self._skipped = 0
        self._chance = {EASY: options.start, HARD: options.start}
        self._seen = {EASY: 0, HARD: 0, "groups": 0}  # since the latest version

    def select(self) -> int:
        """Returns the next prompt of the epoch that is not skipped."""
        while True:
            index = self._epochs.item(self._place)
            draw = random.Random(f"greso/{self._seed}/{self._place}").random()
            self._place += 1
            if draw < self._chance_of(index):
                return index
            self._skipped += 1

    def observe(self, index: int, rewards: Rewards) -> None:
        """Ends the streak if the rewards have spread; a change between easy and hard starts a new one."""
        rewards = with_several_rewards(rewards)
        if not rewards:
            return
        self._seen["groups"] += 1
        if has_spread(rewards, min_spread=self._min_spread):
            self._streaks.drop(index)
            return
        kind, sign = (EASY, 1) if min(mean_rewards(rewards)) > 0.5 else (HARD, -1)
        self._seen[kind] += 1
        streak = self._streaks.get(index) or 0
        self._streaks.put(index, streak + sign if streak * sign > 0 else sign)

    def advance(self, version: Version) -> None:
        """Lowers the probability of a kind that exceeds its target, after the first pass; raises the others."""
        groups = self._seen["groups"]
        if groups and self._place >= self._size:
            for kind, chance in self._chance.items():
                change = -self._step if self._seen[kind] / groups >= self._target[kind] else self._step
                self._chance[kind] = min(0.99, max(0.01, chance + change))
        self._seen = dict.fromkeys(self._seen, 0)

    def changed_rows(self) -> dict[int, Json]:
        return self._streaks.changed()

    def all_rows(self) -> dict[int, Json]:
        return self._streaks.all()

    def load_rows(self, rows: Mapping[int, Any]) -> None:
        """Restores the streaks. Raises: TypeError, ValueError for rows of another shape."""
        self._streaks.load({index: int(streak) for index, streak in rows.items()})

    def metrics(self) -> dict[str, float]:
        """Returns the probabilities, the prompts with a streak, and the share of skipped prompts."""
        return {
            "chance_easy": self._chance[EASY],
            "chance_hard": self._chance[HARD],
            "streaks": float(len(self._streaks)),
            "skipped_share": self._skipped / self._place if self._place else 0.0,
        }

    def _chance_of(self, index: int) -> float:
        streak = self._streaks.get(index)
        if streak is None:
            return 1.0
        kind = EASY if streak > 0 else HARD
        return max(self._chance[kind] ** abs(streak), self._floor[kind])
