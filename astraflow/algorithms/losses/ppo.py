"""The clipped ratio of PPO (arXiv:1707.06347), with the variants that proved useful for language models."""

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.base import Aggregation, BatchFacts, LossPart, LossTokens, token_weights
from astraflow.runtime.config import Config

_LARGEST_LOG_RATIO = 20.0
"""Ratios beyond e^20 are clipped anyway; their exponent must not overflow."""


class PpoOptions(Config):
    """Clipping, averaging, and an optional leash to the first weights."""

    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is not pushed below `1 - clip_low`."""
    clip_high: float = Field(default=0.2, gt=0)
    """The ratio is not pushed above `1 + clip_high`; more than `clip_low` keeps entropy up. (DAPO, arXiv:2503.14476)"""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bounds what one token with a negative advantage and a huge ratio can do. (arXiv:1912.09729)"""
    aggregation: Aggregation = "token_mean"
    fixed_length: int | None = Field(default=None, ge=1)
    """Tokens; for the aggregation `fixed_length`, usually the generation limit."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the penalty for leaving the first weights; 0 keeps no copy of them."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """k1: unbiased; k2: low variance; k3: unbiased and never negative. (J. Schulman, "Approximating KL divergence")"""

    @model_validator(mode="after")
    def _has_length(self) -> "PpoOptions":
        if self.aggregation == "fixed_length" and self.fixed_length is None:
            raise ValueError("aggregation 'fixed_length' needs the option fixed_length")
        return self


@losses.register("ppo", options=PpoOptions)
class Ppo:
    """GRPO's and DAPO's loss too: they differ in advantages, clip range and aggregation."""

    def __init__(self, options: PpoOptions) -> None:
        self._options = options

    @property
    def needs_reference(self) -> bool:
        """When there is a penalty."""
        return self._options.kl_coefficient > 0

    def __call__(self, tokens: LossTokens, batch: BatchFacts) -> LossPart:
        """The share of one micro-batch."""
        options = self._options
        weights = token_weights(
            tokens.owners, batch, aggregation=options.aggregation, fixed_length=options.fixed_length or 1
        )
        log_ratio = (tokens.logprobs - tokens.behaviour).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
        ratio = log_ratio.exp()
        gain = clipped_gain(
            ratio, tokens.advantages, low=options.clip_low, high=options.clip_high, dual=options.dual_clip
        )
        loss = -(weights * gain).sum()
        sums = {
            "clip_fraction": is_clipped(ratio, tokens.advantages, low=options.clip_low, high=options.clip_high).sum(),
            "ratio_mean": ratio.detach().sum(),
            "kl_behaviour": (ratio - 1 - log_ratio).detach().sum(),
        }
        if tokens.reference is not None:
            divergence = kl(tokens.logprobs, tokens.reference, estimator=options.kl_estimator)
            loss = loss + options.kl_coefficient * (weights * divergence).sum()
            sums["kl_reference"] = divergence.detach().sum()
        return LossPart(loss=loss, sums=sums)


def clipped_gain(ratio: Tensor, advantages: Tensor, *, low: float, high: float, dual: float | None) -> Tensor:
    """What is made larger, token by token: the ratio times the advantage, without reward for leaving the clip range.

    >>> clipped_gain(torch.tensor([1.5, 1.5]), torch.tensor([1.0, -1.0]), low=0.2, high=0.2, dual=None)
    tensor([ 1.2000, -1.5000])
    """
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    if dual is None:
        return gain
    return torch.where(advantages < 0, torch.maximum(gain, dual * advantages), gain)


def is_clipped(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """True for tokens that the clip keeps from being pushed further: they have no gradient."""
    return ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))


def kl(logprobs: Tensor, reference: Tensor, *, estimator: Literal["k1", "k2", "k3"]) -> Tensor:
    """Divergence from the reference, estimated token by token: `[tokens]`.

    >>> kl(torch.tensor([-1.0]), torch.tensor([-1.0]), estimator="k3")
    tensor([0.])
    """
    log_ratio = (reference - logprobs).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    match estimator:
        case "k1":
            return -log_ratio
        case "k2":
            return log_ratio.square() / 2
        case "k3":
            return log_ratio.exp() - 1 - log_ratio
