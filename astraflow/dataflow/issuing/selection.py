"""The port of selectors: the data algorithm before rollout."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.values import Json

Rewards: TypeAlias = Mapping[PolicyId, tuple[float, ...]]
"""What a finished group scored, policy by policy; members that failed are left out."""

LEAST_SPREAD = 1e-6
"""Rewards this close are the same reward, unless options say otherwise."""


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


def compared(rewards: Rewards) -> Rewards:
    """Of the policies with more than one reward: where the other members failed, the last one tells of no spread.

    >>> compared({"solver": (1.0,), "verifier": (0.0, 0.0)})
    {'verifier': (0.0, 0.0)}
    """
    return {policy: scores for policy, scores in rewards.items() if len(scores) > 1}


def has_spread(rewards: Rewards, *, least: float = LEAST_SPREAD) -> bool:
    """Whether any policy can learn from the group: a group-relative advantage of equal rewards is zero.

    >>> has_spread({"solver": (1.0, 1.0), "verifier": (0.0, 0.0)}), has_spread({"solver": (0.0, 1.0)})
    (False, True)
    """
    return any(max(scores) - min(scores) > least for scores in rewards.values())


def means(rewards: Rewards) -> list[float]:
    """The mean reward of each policy; empty when every member failed. A policy's rewards say nothing of another's.

    >>> means({"solver": (0.0, 1.0), "verifier": (1.0, 1.0)})
    [0.5, 1.0]
    """
    return [sum(scores) / len(scores) for scores in rewards.values()]
