"""Registry of losses, which the optimizer minimizes; the built-ins by kind."""

from pkgutil import iter_modules

from astraflow.algorithms.losses.base import Loss
from astraflow.runtime.plugins import Registry

_SHARED = {"base", "options", "policy_gradient"}
"""Modules of this package that are no loss."""
_KINDS = tuple(module.name for module in iter_modules(__path__) if module.name not in _SHARED)

losses: Registry[Loss] = Registry(
    "loss", built_in={kind: f"astraflow.algorithms.losses.{kind}" for kind in _KINDS}, heavy=_KINDS
)

WITHOUT_RECORDED_LOGPROBS = ("dpo", "sft")
"""Losses that read neither recorded logprobs nor advantages of single tokens: rows need not be sampled by an engine."""
