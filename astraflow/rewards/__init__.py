"""Registries of rewards, which score completions, and of group rewards, which compare those of a group."""

from collections.abc import Mapping
from typing import Any

from astraflow.contract.ids import PolicyId
from astraflow.rewards.base import GroupReward, PolicyRewardOptions, Reward, RewardRegistry
from astraflow.runtime.plugins import Registry

rewards: Registry[Reward] = RewardRegistry(
    "reward",
    built_in={
        "code_tests": "astraflow.rewards.code_tests",
        "exact_match": "astraflow.rewards.exact_match",
        "f1": "astraflow.rewards.f1",
        "format": "astraflow.rewards.format",
        "llm_judge": "astraflow.rewards.llm_judge",
        "math_answer": "astraflow.rewards.math_answer",
        "overlong": "astraflow.rewards.overlong",
        "reasoning_gym": "astraflow.rewards.reasoning_gym",
        "rubric": "astraflow.rewards.rubric",
    },
    extra="llm",
)

group_rewards: Registry[GroupReward] = Registry(
    "group_reward",
    built_in={
        "best_of": "astraflow.rewards.groups.best_of",
        "diversity": "astraflow.rewards.groups.diversity",
        "pairwise_judge": "astraflow.rewards.groups.pairwise_judge",
    },
    extra="llm",
)


def judging_policies(spec: Mapping[str, Any]) -> tuple[PolicyId, ...]:
    """Returns the policies of the run that a reward asks. Raises: InvalidInput for an unknown kind or bad options."""
    options = rewards.check(spec)
    return options.policies if isinstance(options, PolicyRewardOptions) else ()
