"""Decides which sampled groups stay: some of each step for the whole run, and the newest.

    added ──► newest ──chosen for its step──► kept ──too many kept──► newest ──oldest of too many──► deleted

Of the groups of a step, those of the prompts that come first in a fixed random order are kept: a random choice that
prefers the same prompts at every step. Kept groups take at most half of the limits. When there are more, groups of
those steps go first that make the others denser than needed: a step's neighbours are then at distances that grow with
its number, so that the first steps stay complete and every later one has kept steps near it (see `sparsity`).
"""

import heapq
from dataclasses import dataclass, field

from astraflow.contract.ids import FlowId, GroupId, PolicyId

FOLLOWED_PROMPTS = 4
"""Prompts of each series whose occurrences are kept like steps: dense at first, then at growing distances. Count."""

GroupKey = tuple[PolicyId, GroupId]
"""Policy and group."""

Series = tuple[PolicyId, FlowId | None]
"""Policy and flow of an evaluation; None for the flows that train the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """Stored samples of one group of one policy."""

    ordinal: int
    """Ordinal of its first sample."""
    trajectories: int
    size_bytes: int
    prompt: str
    position: float
    """Position of its prompt in the fixed random order, from 0 to 1."""


@dataclass(slots=True)
class _Choice:
    """Groups chosen for the latest step of a series, and the prompts that are followed."""

    step: int = -1
    chosen: list[tuple[float, GroupKey]] = field(default_factory=list)
    followed: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Position and number of chosen groups, by prompt."""


class SampleRetention:
    """Groups in the order in which they leave."""

    def __init__(self, *, limit: int, limit_bytes: int, per_step: int) -> None:
        """limit, limit_bytes: trajectories and their size. per_step: groups kept of each step."""
        self._limits = limit, limit_bytes
        self._per_step = per_step
        self._groups: dict[GroupKey, StoredGroup] = {}
        self._kept: dict[GroupKey, int] = {}
        """Ranks of the kept groups."""
        self._totals = {False: [0, 0], True: [0, 0]}
        """Trajectories and bytes of all groups, and of the kept ones."""
        self._oldest: list[tuple[int, GroupKey]] = []
        """Heap of the groups that are not kept, by ordinal; has entries of groups that left."""
        self._least: list[tuple[int, float, GroupKey]] = []
        """Heap of the kept groups, the least needed first; has entries of groups that left."""
        self._choices: dict[Series, _Choice] = {}

    def add(self, key: GroupKey, group: StoredGroup) -> None:
        """Adds a group that is not known."""
        self._groups[key] = group
        self._count(group, 1, is_kept=False)
        heapq.heappush(self._oldest, (group.ordinal, key))

    def restore(self, key: GroupKey, group: StoredGroup, series: Series, rank: int | None) -> None:
        """Adds a group of an earlier process. rank: of a kept group; None for others."""
        self.add(key, group)
        if rank is not None:
            self._keep(key, rank)
            _occurrence(self._choices.setdefault(series, _Choice()), group)

    def remove(self, key: GroupKey) -> bool:
        """Removes a group; returns False if it is not known."""
        if key not in self._groups:
            return False
        self._release(key)
        self._count(self._groups.pop(key), -1, is_kept=False)
        return True

    def choose(self, key: GroupKey, series: Series, step: int) -> dict[GroupKey, int | None]:
        """Offers a group of a step; returns the ranks that change: of a chosen group, and None of one that it replaced.

        The groups of a step are offered one after the other. A rank says how early a kept group goes: the higher, the
        earlier.
        """
        group, choice = self._groups.get(key), self._choices.setdefault(series, _Choice())
        if group is None or not self._per_step:
            return {}
        if choice.step != step:
            choice.step, choice.chosen = step, []
        choice.chosen = sorted([*choice.chosen, (group.position, key)])
        surplus = [entry for _, entry in choice.chosen[self._per_step :]]
        del choice.chosen[self._per_step :]
        if key in surplus:
            return {}
        for replaced in surplus:
            self._release(replaced)
        rank = min(sparsity(step), sparsity(_occurrence(choice, group)))
        self._keep(key, rank)
        return {key: rank, **dict.fromkeys(surplus)}

    def take_surplus(self) -> tuple[list[GroupKey], list[GroupKey]]:
        """Removes the groups beyond the limits; returns those that are no longer kept, and those to delete."""
        released, deleted = [], []
        while self._is_above(self._totals[True], share=2) and self._least:
            _, _, key = heapq.heappop(self._least)
            if key in self._kept:
                self._release(key)
                released.append(key)
        while self._is_above(self._totals[False], share=1) and self._oldest:
            ordinal, key = heapq.heappop(self._oldest)
            if key not in self._kept and key in self._groups and self._groups[key].ordinal == ordinal:
                self.remove(key)
                deleted.append(key)
        return [key for key in released if key in self._groups], deleted

    def _keep(self, key: GroupKey, rank: int) -> None:
        if key not in self._kept:
            self._count(self._groups[key], 1, is_kept=True)
        self._kept[key] = rank
        heapq.heappush(self._least, (-rank, -self._groups[key].position, key))

    def _release(self, key: GroupKey) -> None:
        if self._kept.pop(key, None) is not None:
            self._count(self._groups[key], -1, is_kept=True)
            heapq.heappush(self._oldest, (self._groups[key].ordinal, key))

    def _count(self, group: StoredGroup, sign: int, *, is_kept: bool) -> None:
        totals = self._totals[is_kept]
        totals[0] += sign * group.trajectories
        totals[1] += sign * group.size_bytes

    def _is_above(self, totals: list[int], *, share: int) -> bool:
        return totals[0] > self._limits[0] // share or totals[1] > self._limits[1] // share


def sparsity(number: int) -> int:
    """Returns the lowest d for which a grid with 2^d points between each power of two and the next has this number.

    Dropping the highest ones first thins each octave evenly, and the low octaves last.

    >>> [sparsity(number) for number in (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 1024, 1025)]
    [0, 0, 0, 1, 0, 2, 1, 2, 0, 1, 0, 10]
    """
    if number < 1:
        return 0
    return number.bit_length() - (number & -number).bit_length()


def _occurrence(choice: _Choice, group: StoredGroup) -> int:
    """Counts a chosen group of its prompt. Returns how many there are if the prompt is followed, else the step."""
    position, count = choice.followed.get(group.prompt, (group.position, 0))
    choice.followed[group.prompt] = position, count + 1
    if len(choice.followed) > FOLLOWED_PROMPTS:
        del choice.followed[max(choice.followed, key=lambda prompt: choice.followed[prompt][0])]
    return count + 1 if group.prompt in choice.followed else choice.step
