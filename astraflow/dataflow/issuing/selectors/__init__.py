"""Built-in selectors, by kind."""

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from astraflow.contract.ids import Version
from astraflow.dataflow.admission.filters import MIN_REWARD_SPREAD
from astraflow.dataflow.plugin_slot import Plugin
from astraflow.runtime.plugins import Registry, modules

Rewards: TypeAlias = Mapping[str, tuple[float, ...]]
"""Rewards of a finished group, by policy, or by `policy/role` (`solver/verifier`) when the workflow names roles; failed
members are left out. Later attempts belong to their role: `solver.retry` to `solver`."""


class Selector(Plugin, Protocol):
    """Chooses the next prompt. Built by `selectors.build(spec, size, seed)`; `size` is the number of prompts.

    Its state must be everything that its next choice depends on, so that a restarted run continues as if it had not
    stopped. State per prompt belongs into rows (`astraflow.dataflow.storage.prompt_rows`), not into `state_dict`.
    """

    def select(self) -> int:
        """Returns the index of the next prompt, `0 <= index < size`."""

    def observe(self, index: int, rewards: Rewards) -> None:
        """Observes the rewards of a finished group of that prompt, before any filter."""

    def advance(self, version: Version) -> None:
        """Sets the newest version that every policy of the flow has reached; called each time it grows."""


def with_several_rewards(rewards: Rewards) -> Rewards:
    """Returns the rewards of policies and roles with more than one reward: a single one has no spread.

    >>> with_several_rewards({"solver": (1.0,), "verifier": (0.0, 0.0)})
    {'verifier': (0.0, 0.0)}
    """
    return {slot: scores for slot, scores in rewards.items() if len(scores) > 1}


def has_spread(rewards: Rewards, *, min_spread: float = MIN_REWARD_SPREAD) -> bool:
    """Returns whether any policy can learn from the group: a group-relative advantage of equal rewards is zero.

    >>> has_spread({"solver": (1.0, 1.0), "verifier": (0.0, 0.0)}), has_spread({"solver": (0.0, 1.0)})
    (False, True)
    """
    return any(max(scores) - min(scores) > min_spread for scores in rewards.values())


def mean_rewards(rewards: Rewards) -> list[float]:
    """Returns the mean reward of each policy and role; empty when every member failed.

    >>> mean_rewards({"solver": (0.0, 1.0), "verifier": (1.0, 1.0)})
    [0.5, 1.0]
    """
    return [sum(scores) / len(scores) for scores in rewards.values()]


selectors: Registry[Selector] = Registry(
    "selector",
    built_in=modules(__name__, "curriculum greso sequential uniform"),
)
