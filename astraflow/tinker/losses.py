"""Losses of the Tinker API: sums over tokens, with the weights or advantages that the client sends.

Formulas use l for the logprob of a target, q for the one at sampling, r = exp(l - q), A for the advantage, w for the
weight. Source: documentation of the Tinker API, "Losses".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from astraflow.algorithms.divergence import bounded_exp
from astraflow.algorithms.losses.ppo import clipped_objective
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.base import suggest_name

Inputs = Mapping[str, Tensor]
"""float32 inputs of a loss by name, in the shape of the logprobs."""
Settings = Mapping[str, float]

NOT_SERVED = ("gspo", "stable_reinforce", "custom")
"""Losses of the SDK that the server does not compute: the formula of `stable_reinforce` and the default clip range of
`gspo` are not published; the SDK computes custom losses from logprobs itself."""

_PPO_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
_CISPO_CLIP = {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}
"""No lower bound, since the weight has no gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """Loss that is a sum over tokens."""

    value: Callable[[Tensor, Inputs, Settings], Tensor]
    """Returns the loss of each token from the logprobs of the targets, with gradient."""
    inputs: tuple[str, ...]
    """Inputs of each target beside `target_tokens`."""
    settings: Settings = field(default_factory=dict)
    """Settings and their defaults."""


def _cross_entropy(logprobs: Tensor, inputs: Inputs, _settings: Settings) -> Tensor:
    """-w l"""
    return -inputs["weights"] * logprobs


def _importance_sampling(logprobs: Tensor, inputs: Inputs, _settings: Settings) -> Tensor:
    """-r A"""
    return -_ratio(logprobs, inputs) * inputs["advantages"]


def _ppo(logprobs: Tensor, inputs: Inputs, settings: Settings) -> Tensor:
    """-min(r A, clip(r, low, high) A)"""
    ratio = _ratio(logprobs, inputs)
    clipped = ratio.clamp(settings["clip_low_threshold"], settings["clip_high_threshold"])
    return -clipped_objective(ratio, clipped, inputs["advantages"], dual=None)


def _cispo(logprobs: Tensor, inputs: Inputs, settings: Settings) -> Tensor:
    """-sg(clip(r, low, high)) A l"""
    ratio = _ratio(logprobs, inputs).detach()
    weights = ratio.clamp(settings["clip_low_threshold"], settings["clip_high_threshold"])
    return -weights * inputs["advantages"] * logprobs


def _dro(logprobs: Tensor, inputs: Inputs, settings: Settings) -> Tensor:
    """-(A l - beta / 2 (l - q)^2)"""
    return 0.5 * settings["beta"] * (logprobs - inputs["logprobs"]).square() - inputs["advantages"] * logprobs


def _ratio(logprobs: Tensor, inputs: Inputs) -> Tensor:
    return bounded_exp(logprobs - inputs["logprobs"])


_SAMPLED = ("logprobs", "advantages")

LOSSES: Mapping[str, TokenLoss] = {
    "cross_entropy": TokenLoss(value=_cross_entropy, inputs=("weights",)),
    "importance_sampling": TokenLoss(value=_importance_sampling, inputs=_SAMPLED),
    "ppo": TokenLoss(value=_ppo, inputs=_SAMPLED, settings=_PPO_CLIP),
    "cispo": TokenLoss(value=_cispo, inputs=_SAMPLED, settings=_CISPO_CLIP),
    "dro": TokenLoss(value=_dro, inputs=_SAMPLED, settings={"beta": 0.05}),
}


def find_loss(name: str) -> TokenLoss:
    """Returns the loss of a name. Raises: InvalidInput naming the field."""
    if name in LOSSES:
        return LOSSES[name]
    cause = "this server does not compute it" if name in NOT_SERVED else "there is no such loss"
    raise InvalidInput(
        f"cannot use loss_fn {name[:80]!r}: {cause}; {suggest_name(name[:80], list(LOSSES))}",
        code="tinker.loss_not_served",
    )
