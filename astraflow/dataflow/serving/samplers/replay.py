"""Train a share of each batch on groups that were trained before. (Experience replay: RLEP, arXiv:2507.07451)"""

import math
import random
from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import Any, Literal

from pydantic import Field

from astraflow.contract.ids import Version
from astraflow.contract.values import Json
from astraflow.dataflow.serving.buffer import Buffered
from astraflow.dataflow.serving.orders import Order, place
from astraflow.dataflow.serving.samplers import samplers
from astraflow.runtime.config import Config

_OLDEST = 64
"""Versions of age after which a group becomes no less likely: the next halvings would end at 0."""


class ReplayOptions(Config):
    """How much is replayed, and what."""

    ratio: float = Field(default=0.3, gt=0, lt=1)
    """Largest share of a batch; smaller while too few trained groups are within the staleness bound."""
    weighting: Literal["recency", "reward", "uniform"] = "recency"
    """What makes a trained group likelier to be chosen: few versions of age, a high mean reward, or nothing."""
    order: Order = "deadline"
    """Which fresh groups go first: see the sampler `fresh`."""


@samplers.register("replay", options=ReplayOptions)
class Replay:
    """Fresh groups in their order, and trained ones by weighted chance, each at most once in a batch.

    A fresh group that would be too stale for the next batch goes before any replay. The draw depends on the version
    and the groups alone, so that there is no state besides the count.
    """

    def __init__(self, options: ReplayOptions) -> None:
        self._options = options
        self._chosen = 0
        self._replayed = 0

    def fresh_count(self, count: int, trained: int) -> int:
        """All but the ratio, and at least one."""
        return max(1, count - min(trained, round(self._options.ratio * count)))

    def sample(
        self, fresh: Sequence[Buffered], trained: Sequence[Buffered], count: int, version: Version
    ) -> list[Buffered]:
        """Fresh groups first, then replayed ones."""
        needed = self.fresh_count(count, len(trained))
        urgent = sum(candidate.deadline <= version for candidate in fresh)
        by_order = sorted(fresh, key=lambda group: (group.deadline > version, place(group, self._options.order)))
        first = by_order[: min(count, max(needed, urgent))]
        again = self._drawn(trained, count - len(first), version)
        self._chosen += count
        self._replayed += len(again)
        return first + again

    def state_dict(self) -> dict[str, Json]:
        """Groups chosen."""
        return {"chosen": self._chosen, "replayed": self._replayed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._chosen, self._replayed = state["chosen"], state["replayed"]

    def metrics(self) -> dict[str, float]:
        """Share of all batches that was replayed."""
        return {"replayed_share": self._replayed / self._chosen if self._chosen else 0.0}

    def _drawn(self, trained: Sequence[Buffered], count: int, version: Version) -> list[Buffered]:
        """Weighted, without replacement: the largest u^(1/w). Source: Efraimidis and Spirakis, 2006.

        As log(u)/w: the power itself is 0 for most u once w is small, and the order of arrival would decide.
        """

        def key(candidate: Buffered) -> float:
            chance = 1 - random.Random(f"replay/{version}/{candidate.group.id}").random()
            return math.log(chance) / self._weight(candidate, version)

        return nlargest(count, trained, key=key)

    def _weight(self, candidate: Buffered, version: Version) -> float:
        match self._options.weighting:
            case "recency":
                return 0.5 ** min(_OLDEST, max(0, version - candidate.born))
            case "reward":
                rewards = candidate.group.rewards()
                return max(1e-3, sum(rewards) / len(rewards))
            case "uniform":
                return 1.0
