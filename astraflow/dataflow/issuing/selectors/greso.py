"""Skip prompts that lately taught nothing. (GRESO, Act Only When It Pays, arXiv:2506.02177)"""

import random
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from astraflow.contract.ids import Version
from astraflow.contract.values import Json
from astraflow.dataflow.issuing.epochs import Epochs
from astraflow.dataflow.issuing.selection import LEAST_SPREAD, Rewards, compared, has_spread, means
from astraflow.dataflow.issuing.selectors import selectors
from astraflow.dataflow.rows import Rows
from astraflow.runtime.config import Config

EASY, HARD = "easy", "hard"


class GresoOptions(Config):
    """How readily prompts are skipped. Defaults are the paper's; published recipes use the floors 0.05 and 0.30."""

    start: float = Field(default=0.5, ge=0.01, le=0.99)
    """Chance of a prompt after one group without spread, at first; after z of them it is the z-th power."""
    floor_easy: float = Field(default=0.10, ge=0.01, le=1)
    """A prompt that was always solved is issued at least with this chance."""
    floor_hard: float = Field(default=0.40, ge=0.01, le=1)
    """A prompt that was never solved is issued at least with this chance."""
    target_easy: float = Field(default=0.083, ge=0, le=1)
    """Share of all groups that may be easy ones without spread before the chance of such prompts is lowered."""
    target_hard: float = Field(default=0.167, ge=0, le=1)
    """The same for hard ones."""
    step: float = Field(default=0.01, gt=0, le=0.5)
    """By how much the chances change with a version."""
    min_spread: float = Field(default=LEAST_SPREAD, ge=0)
    """Largest minus smallest reward must exceed this: the same as that of the filter `informative`."""


@selectors.register("greso", options=GresoOptions)
class Greso:
    """Epochs over the data, from which prompts are skipped by chance; the longer their streak, the likelier.

    A prompt's row is its streak of groups without spread: positive when they were easy, negative when hard. With
    several policies a group has spread when any of them can learn from it, and is easy when none of them fails.
    """

    def __init__(self, options: GresoOptions, size: int, seed: int) -> None:
        self._floor = {EASY: options.floor_easy, HARD: options.floor_hard}
        self._target = {EASY: options.target_easy, HARD: options.target_hard}
        self._step = options.step
        self._min_spread = options.min_spread
        self._size = size
        self._seed = seed
        self._epochs = Epochs(size, seed=seed)
        self._streaks = Rows[int]()
        self._place = 0
        self._skipped = 0
        self._chance = {EASY: options.start, HARD: options.start}
        self._seen = {EASY: 0, HARD: 0, "groups": 0}  # since the latest version

    def select(self) -> int:
        """The next of the epoch that is not skipped."""
        while True:
            index, draw = self._epochs.item(self._place), random.Random(f"greso/{self._seed}/{self._place}").random()
            self._place += 1
            if draw < self._chance_of(index):
                return index
            self._skipped += 1

    def observe(self, index: int, rewards: Rewards) -> None:
        """Any spread ends the streak; a change from easy to hard or back begins a new one."""
        rewards = compared(rewards)
        if not rewards:
            return
        self._seen["groups"] += 1
        if has_spread(rewards, least=self._min_spread):
            self._streaks.drop(index)
            return
        kind, sign = (EASY, 1) if min(means(rewards)) > 0.5 else (HARD, -1)
        self._seen[kind] += 1
        streak = self._streaks.get(index) or 0
        self._streaks.put(index, streak + sign if streak * sign > 0 else sign)

    def advance(self, version: Version) -> None:
        """After the first pass over the data: issue less of a kind that exceeds its target, else more."""
        groups = self._seen["groups"]
        if groups and self._place >= self._size:
            for kind, chance in self._chance.items():
                change = -self._step if self._seen[kind] / groups >= self._target[kind] else self._step
                self._chance[kind] = min(0.99, max(0.01, chance + change))
        self._seen = dict.fromkeys(self._seen, 0)

    def state_dict(self) -> dict[str, Json]:
        """Place, chances and counts; streaks are rows."""
        return {
            "place": self._place,
            "skipped": self._skipped,
            "chance": dict(self._chance),
            "seen": dict(self._seen),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._place, self._skipped = state["place"], state["skipped"]
        self._chance, self._seen = dict(state["chance"]), dict(state["seen"])

    def changed_rows(self) -> dict[int, Json]:
        """Streaks that changed."""
        return self._streaks.changed()

    def all_rows(self) -> dict[int, Json]:
        """All streaks."""
        return self._streaks.all()

    def load_rows(self, rows: Mapping[int, Any]) -> None:
        """Go on with these streaks."""
        self._streaks.load(rows)

    def metrics(self) -> dict[str, float]:
        """Chances, prompts with a streak, and the share of prompts that was skipped."""
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
