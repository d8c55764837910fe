"""Registry of losses, which the optimizer minimizes; the built-ins by kind."""

from astraflow.algorithms.losses.base import Loss
from astraflow.runtime.plugins import Registry

_KINDS = ("cispo", "critic", "decoupled_ppo", "dpo", "dppo", "gspo", "m2po", "ppo", "reinforce", "sapo", "sft")

losses: Registry[Loss] = Registry(
    "loss", built_in={kind: f"astraflow.algorithms.losses.{kind}" for kind in _KINDS}, heavy=_KINDS
)

WITHOUT_RECORDED_LOGPROBS = ("dpo", "sft")
"""Losses that read neither recorded logprobs nor advantages of single tokens: rows need not be sampled by an engine."""
