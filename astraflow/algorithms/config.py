"""What a policy learns by: advantages, loss, and what they must know about how rollouts are made."""

from typing import Any

from pydantic import Field

from astraflow.runtime.config import Config


class AlgorithmConfig(Config):
    """GRPO by default: group-relative advantages, clipped ratio against the recorded behaviour logprobs, token mean."""

    advantages: tuple[dict[str, Any], ...] = ({"kind": "group_relative"},)
    """Applied in order, the first to the rewards, each further one to the result before it."""
    loss: dict[str, Any] = Field(default_factory=lambda: {"kind": "ppo"})
    """`kind` and its options."""
    temperature: float = Field(default=1.0, gt=0)
    """That rollouts are sampled at: recorded logprobs are of the tempered distribution, and so are the trainer's."""
    mask_truncated: bool = False
    """Leave trajectories that were cut off at their length limit out of loss and means. (DAPO, arXiv:2503.14476)"""
