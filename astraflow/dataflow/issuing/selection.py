"""The port of selectors: the data algorithm before rollout."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.tasks import Json

Rewards: TypeAlias = Mapping[PolicyId, tuple[float, ...]]
"""What a finished group scored, policy by policy; members that failed are left out."""

EQUAL = 1e-6
"""Rewards this close are the same reward."""


class Selector(Protocol):
    """Chooses the next prompt. Built by `selectors.build(spec, size, seed)`, `size` the number of prompts.

    Its state must be all that its next choice depends on: a restarted run goes on as if it had not stopped. What it
    remembers of each prompt belongs into rows (`astraflow.dataflow.rows`), not into its `state_dict`.
    """

    def select(self) -> int:
        """Index of the next prompt, `0 <= index < size`."""

    def observe(self, index: int, rewards: Rewards) -> None:
        """Learn what a finished group of that prompt scored, before any filter."""

    def advance(self, version: Version) -> None:
        """Every policy of the flow is at this version now; called each time it grows."""

    def state_dict(self) -> dict[str, Json]:
        """What `load_state_dict` needs, as JSON."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""

    def metrics(self) -> dict[str, float]:
        """Its own figures for the report."""


def has_spread(rewards: Rewards) -> bool:
    """Whether any policy can learn from the group: a group-relative advantage of equal rewards is zero.

    >>> has_spread({"solver": (1.0, 1.0), "verifier": (0.0, 0.0)}), has_spread({"solver": (0.0, 1.0)})
    (False, True)
    """
    return any(max(scores) - min(scores) > EQUAL for scores in rewards.values())


def mean_reward(rewards: Rewards) -> float | None:
    """Mean over all members of all policies; None when every member failed."""
    scores = [score for of_policy in rewards.values() for score in of_policy]
    return sum(scores) / len(scores) if scores else None
