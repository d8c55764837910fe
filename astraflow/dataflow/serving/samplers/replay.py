"""Trains a share of each batch on groups that were trained before. (Experience replay: RLEP, arXiv:2507.07451)"""

import math
import random
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from astraflow.contract.ids import Version
from astraflow.dataflow.plugin_slot import SavedCounts
from astraflow.dataflow.serving.buffer import BufferedGroup, GroupOrder, filled, sort_key
from astraflow.dataflow.serving.samplers import samplers
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

_OLDEST = 64
"""Age in versions beyond which the weight stays constant: further halvings would end at 0."""


class ReplayOptions(Config):
    """Share of replayed groups and how they are drawn."""

    ratio: float = Field(default=0.3, gt=0, lt=1)
    """Largest share of a batch; smaller while too few trained groups are within the staleness bound."""
    weighting: Annotated[Literal["recency", "reward", "uniform"], SettableBy.AGENT] = "recency"
    """Property that raises the probability of a trained group: low age in versions, high mean reward (in which each
    role of the policy has the same weight), or none."""
    order: Annotated[GroupOrder, SettableBy.AGENT] = "deadline"
    """Order of fresh groups: see the sampler `fresh`."""


@samplers.register("replay", options=ReplayOptions)
class Replay(SavedCounts):
    """Samples fresh groups in order, and trained groups by weighted draw, each at most once in a batch.

    A fresh group that would be too stale for the next batch goes before any replay. The draw depends on the version and
    the groups alone, so there is no state besides the counts.
    """

    saved = ("chosen", "replayed")

    def __init__(self, options: ReplayOptions) -> None:
        self._options = options
        self._chosen = 0
        self._replayed = 0

    def fresh_count(self, count: int, trained: int) -> int:
        """Returns `count` without the replayed share, and at least 1."""
        return max(1, count - min(trained, round(self._options.ratio * count)))

    def sample(
        self, fresh: Sequence[BufferedGroup], trained: Sequence[BufferedGroup], count: int, version: Version
    ) -> list[BufferedGroup]:
        """Returns fresh groups first, then replayed groups."""
        needed = self.fresh_count(count, sum(candidate.size for candidate in trained))
        urgent = sum(candidate.size for candidate in fresh if candidate.deadline <= version)
        by_order = sorted(fresh, key=lambda group: (group.deadline > version, sort_key(group, self._options.order)))
        fresh_chosen = filled(by_order, min(count, max(needed, urgent)))
        replayed = self._drawn(trained, count - sum(candidate.size for candidate in fresh_chosen), version)
        self._chosen += len(fresh_chosen) + len(replayed)
        self._replayed += len(replayed)
        return fresh_chosen + replayed

    def metrics(self) -> dict[str, float]:
        """Returns the share of replayed groups in all batches."""
        return {"replayed_share": self._replayed / self._chosen if self._chosen else 0.0}

    def _drawn(self, trained: Sequence[BufferedGroup], size: int, version: Version) -> list[BufferedGroup]:
        """Draws groups by weight without replacement: the largest u^(1/w). Source: Efraimidis and Spirakis, 2006.

        Computed as log(u)/w: the power itself is 0 for most u once w is small, and the order of arrival would decide.
        """

        def key(candidate: BufferedGroup) -> float:
            uniform = 1 - random.Random(f"replay/{version}/{candidate.group.id}").random()
            return math.log(uniform) / self._weight(candidate, version)

        return filled(sorted(trained, key=key, reverse=True), size)

    def _weight(self, candidate: BufferedGroup, version: Version) -> float:
        match self._options.weighting:
            case "recency":
                return 0.5 ** min(_OLDEST, max(0, version - candidate.oldest_version))
            case "reward":
                means = [sum(rewards) / len(rewards) for rewards in candidate.group.role_rewards().values()]
                return max(1e-3, sum(means) / len(means))
            case "uniform":
                return 1.0
