"""Registries of rewards, which score completions, and of group rewards, which compare those of a group."""

from collections.abc import Mapping
from typing import Any

from astraflow.contract.ids import PolicyId
from astraflow.rewards.base import GroupReward, PolicyRewardOptions, Reward, RewardRegistry
from astraflow.runtime.plugins import Registry, modules

rewards: Registry[Reward] = RewardRegistry(
    "reward",
    built_in=modules(__name__, "code_tests exact_match f1 format llm_judge math_answer overlong reasoning_gym rubric"),
    extra="llm",
)

group_rewards: Registry[GroupReward] = Registry(
    "group_reward",
    built_in=modules("astraflow.rewards.groups", "best_of diversity pairwise_judge"),
    extra="llm",
)


def judging_policies(spec: Mapping[str, Any]) -> tuple[PolicyId, ...]:
    """Returns the policies of the run that a reward asks. Raises: InvalidInput for an unknown kind or bad options."""
    options = rewards.check(spec)
    return options.policies if isinstance(options, PolicyRewardOptions) else ()
