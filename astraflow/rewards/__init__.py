"""Registry of rewards, which score completions."""

from astraflow.rewards.base import Reward
from astraflow.runtime.plugins import Registry

rewards: Registry[Reward] = Registry(
    "reward",
    built_in={
        "code_tests": "astraflow.rewards.code_tests",
        "exact_match": "astraflow.rewards.exact_match",
    },
)
