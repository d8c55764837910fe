"""Samples the groups with the highest priority first. (After prioritized experience replay, arXiv:1511.05952)"""

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from typing import Any, Literal

import numpy as np

from astraflow.contract.ids import Version
from astraflow.contract.values import Json
from astraflow.dataflow.serving.buffer import BufferedGroup
from astraflow.dataflow.serving.samplers import samplers
from astraflow.runtime.config import Config


class PriorityOptions(Config):
    """Options of the sampler `priority`."""

    by: Literal["spread", "reward"] = "spread"
    """`spread`: largest standard deviation of rewards, where group-relative advantages are largest before they are
    normalised; `reward`: highest mean reward."""


@samplers.register("priority", options=PriorityOptions)
class Priority:
    """Uses every group once; groups at their deadline come first, so that none is lost to one of higher priority."""

    def __init__(self, options: PriorityOptions) -> None:
        self._by = options.by
        self._sampled = 0
        self._urgent = 0

    def fresh_count(self, count: int, trained: int) -> int:
        """Returns `count`: all groups are fresh."""
        return count

    def sample(
        self, fresh: Sequence[BufferedGroup], trained: Sequence[BufferedGroup], count: int, version: Version
    ) -> list[BufferedGroup]:
        """Returns the groups that would be too stale in the next batch, then the groups of highest priority."""
        chosen = nsmallest(count, fresh, key=lambda group: (group.deadline > version, -self._priority(group)))
        self._sampled += len(chosen)
        self._urgent += sum(group.deadline <= version for group in chosen)
        return chosen

    def state_dict(self) -> dict[str, Json]:
        """Returns the counts of groups."""
        return {"taken": self._sampled, "urgent": self._urgent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state."""
        self._sampled, self._urgent = state["taken"], state["urgent"]

    def metrics(self) -> dict[str, float]:
        """Returns the share of groups that were taken because of their deadline."""
        return {"urgent_share": self._urgent / self._sampled if self._sampled else 0.0}

    def _priority(self, candidate: BufferedGroup) -> float:
        rewards = candidate.group.role_rewards().values()
        return float(np.mean([np.std(values) if self._by == "spread" else np.mean(values) for values in rewards]))
