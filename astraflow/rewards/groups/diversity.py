"""Group reward for completions that differ from the others of their group.

Source: distinct n-grams, arXiv:1510.03055; rewards for diversity in groups, arXiv:2509.02534.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from astraflow.contract.rollouts.tasks import Prompt
from astraflow.rewards import group_rewards
from astraflow.rewards.base import GroupMember
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy


class DiversityOptions(Config):
    """Part of the completions that is compared."""

    compares: Annotated[Literal["words", "answers"], SettableBy.AGENT] = "words"
    """`words`: sets of word sequences of the texts; `answers`: the answers that the reward extracted."""
    words: int = Field(default=2, ge=1, le=8)
    """Length of the compared word sequences. Count."""
    max_words: int = Field(default=2000, ge=1)
    """First words of a text that are compared: comparing blocks the service, and takes time by their number. Count."""
    min_reward: float | None = None
    """A member with a lower reward scores 0, so that nonsense is not diversity; None: all members."""


@group_rewards.register("diversity", options=DiversityOptions)
class Diversity:
    """Returns the mean distance of each member from the others, in 0 (equal to all) to 1 (nothing in common).

    The distance is one minus the Jaccard index of the word sequences, or 0 and 1 for equal and different answers.
    """

    def __init__(self, options: DiversityOptions) -> None:
        self._options = options

    async def scores(self, prompt: Prompt, members: Sequence[GroupMember]) -> list[float]:
        """Returns the mean distance of each member; 0 for a single one."""
        items = [self._items(member) for member in members]
        lowest = self._options.min_reward
        return [
            _mean_distance(own, items[:index] + items[index + 1 :])
            if lowest is None or members[index].reward >= lowest
            else 0.0
            for index, own in enumerate(items)
        ]

    def _items(self, member: GroupMember) -> frozenset[tuple[str, ...]]:
        if self._options.compares == "answers":
            return frozenset({(member.answer,)})
        length = self._options.words
        # Bounds the cost of a text without spaces.
        words = member.text[: 64 * self._options.max_words].lower().split()[: self._options.max_words]
        count = max(1, len(words) - length + 1)
        return frozenset(tuple(words[begin : begin + length]) for begin in range(count))


def _mean_distance(own: frozenset[tuple[str, ...]], others: Sequence[frozenset[tuple[str, ...]]]) -> float:
    distances = [1 - len(own & other) / len(own | other) for other in others]
    return sum(distances) / len(distances) if distances else 0.0
