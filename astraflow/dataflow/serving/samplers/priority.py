"""Groups that teach most go first. (After prioritized experience replay, arXiv:1511.05952)"""

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from typing import Any, Literal

import numpy as np

from astraflow.contract.ids import Version
from astraflow.contract.values import Json
from astraflow.dataflow.serving.buffer import Buffered
from astraflow.dataflow.serving.samplers import samplers
from astraflow.runtime.config import Config


class PriorityOptions(Config):
    """What teaches most."""

    by: Literal["spread", "reward"] = "spread"
    """`spread`: the largest standard deviation of rewards, where group-relative advantages are largest before they are
    normalised; `reward`: the highest mean reward."""


@samplers.register("priority", options=PriorityOptions)
class Priority:
    """Every group once; one at its deadline goes before any other, so that none is lost to a better one."""

    def __init__(self, options: PriorityOptions) -> None:
        self._by = options.by
        self._taken = 0
        self._urgent = 0

    def fresh_count(self, count: int, trained: int) -> int:
        """All of them."""
        return count

    def sample(
        self, fresh: Sequence[Buffered], trained: Sequence[Buffered], count: int, version: Version
    ) -> list[Buffered]:
        """What would be too stale in the next batch, then the best; ties by arrival."""
        chosen = nsmallest(count, fresh, key=lambda group: (group.deadline > version, -self._worth(group)))
        self._taken += len(chosen)
        self._urgent += sum(group.deadline <= version for group in chosen)
        return chosen

    def state_dict(self) -> dict[str, Json]:
        """Groups taken."""
        return {"taken": self._taken, "urgent": self._urgent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._taken, self._urgent = state["taken"], state["urgent"]

    def metrics(self) -> dict[str, float]:
        """Share of groups that were taken for their deadline, not their worth."""
        return {"urgent_share": self._urgent / self._taken if self._taken else 0.0}

    def _worth(self, candidate: Buffered) -> float:
        rewards = candidate.group.rewards()
        return float(np.std(rewards) if self._by == "spread" else np.mean(rewards))
