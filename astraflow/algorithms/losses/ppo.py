"""Clipped policy ratio of PPO (arXiv:1707.06347), with the variants that are common for language models."""

from typing import Any, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.options import AnchoredOptions, PolicyOptions
from astraflow.algorithms.losses.policy_gradient import Objective, PolicyGradient, PolicyTokens


class ClipOptions(PolicyOptions):
    """Clip range of a policy ratio."""

    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """No gradient below the ratio `1 - clip_low`."""
    clip_high: float = Field(default=0.2, gt=0)
    """No gradient above the ratio `1 + clip_high`; more than `clip_low`, such as 0.28, keeps entropy up. (DAPO,
    arXiv:2503.14476)"""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bounds the effect of a token with negative advantage and a huge ratio, such as 3; None: no bound.
    (arXiv:1912.09729)"""


class PpoOptions(ClipOptions, AnchoredOptions):
    """Clip range, anchor of the ratio, averaging, corrections and penalties."""


Clip = TypeVar("Clip", bound=ClipOptions)


class ClippedRatio(PolicyGradient[Clip]):
    """Objective min(rA, clip(r, 1 - clip_low, 1 + clip_high)A)."""

    def objective(self, tokens: PolicyTokens, _state: Any) -> Objective:
        options = self.options
        low, high = 1 - options.clip_low, 1 + options.clip_high
        ratio = tokens.ratio
        return Objective(
            gain=clipped_objective(ratio, ratio.clamp(low, high), tokens.advantages, dual=options.dual_clip),
            is_clipped=is_clipped(ratio, tokens.advantages, low=low, high=high, dual=options.dual_clip),
        )


@losses.register("ppo", options=PpoOptions)
class Ppo(ClippedRatio[PpoOptions]):
    """Loss of PPO, GRPO and DAPO, which differ in advantages, clip range and aggregation.

    Formula: -min(rA, clip(r, 1 - low, 1 + high)A); with dual clip at least cA where A < 0.
    Source: arXiv:1707.06347, arXiv:2402.03300, arXiv:2503.14476.
    """


def clipped_objective(ratio: Tensor, clipped_ratio: Tensor, advantages: Tensor, *, dual: float | None) -> Tensor:
    """Returns the objective to maximize, per token: ratio times advantage, without gain for leaving the clip range.

    >>> ratio = torch.tensor([1.5, 1.5])
    >>> clipped_objective(ratio, ratio.clamp(0.8, 1.2), torch.tensor([1.0, -1.0]), dual=None)
    tensor([ 1.2000, -1.5000])
    """
    gain = torch.minimum(ratio * advantages, clipped_ratio * advantages)
    if dual is None:
        return gain
    return torch.where(advantages < 0, torch.maximum(gain, dual * advantages), gain)


def is_clipped(
    ratio: Tensor, advantages: Tensor, *, low: float | Tensor, high: float | Tensor, dual: float | None = None
) -> Tensor:
    """Returns True for tokens outside the range of ratios, which have no gradient. All may be logarithms instead."""
    is_outside = ((advantages > 0) & (ratio > high)) | ((advantages < 0) & (ratio < low))
    return is_outside if dual is None else is_outside | ((advantages < 0) & (ratio > dual))
