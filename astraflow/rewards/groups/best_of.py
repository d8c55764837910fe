"""Group reward for the best members of a group.

Source: arXiv:2009.01325 (best of n).
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from astraflow.contract.rollouts.tasks import Prompt
from astraflow.rewards import group_rewards
from astraflow.rewards.base import GroupMember
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy


class BestOfOptions(Config):
    """Number of winners."""

    winners: int = Field(default=1, ge=1)
    """Members that count as best."""
    prefers_short: Annotated[bool, SettableBy.AGENT] = False
    """Among equal rewards, the shorter text is better; else all of them share."""


@group_rewards.register("best_of", options=BestOfOptions)
class BestOf:
    """Returns 1 for the members with the highest rewards, else 0; members that tie for the last place share it.

    With `base_weight = 0` it turns any reward into "best of the group"; a group of equal rewards has no signal.
    """

    def __init__(self, options: BestOfOptions) -> None:
        self._options = options

    async def scores(self, prompt: Prompt, members: Sequence[GroupMember]) -> list[float]:
        """Returns the share of a place among the winners of each member, in 0 to 1."""
        ranks = [(member.reward, -len(member.text) if self._options.prefers_short else 0) for member in members]
        return [self._share(rank, ranks) for rank in ranks]

    def _share(self, rank: tuple[float, int], ranks: Sequence[tuple[float, int]]) -> float:
        better, equal = sum(other > rank for other in ranks), ranks.count(rank)
        return min(1.0, max(0.0, (self._options.winners - better) / equal))
