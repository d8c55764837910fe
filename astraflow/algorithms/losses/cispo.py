"""Clipped importance weights of CISPO (MiniMax-M1, arXiv:2506.13585): clipped tokens keep a gradient."""

from typing import Any

from pydantic import Field

from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.options import AnchoredOptions
from astraflow.algorithms.losses.policy_gradient import Objective, PolicyGradient, PolicyTokens


class CispoOptions(AnchoredOptions):
    """Bounds of the importance weight."""

    clip_high: float = Field(default=4.0, gt=0)
    """Weights are at most `1 + clip_high`. (SkyRL; a low bound cuts the rare tokens that the paper wants to keep)"""
    clip_low: float | None = Field(default=None, gt=0, lt=1)
    """Weights are at least `1 - clip_low`; None: no lower bound, as in the paper."""


@losses.register("cispo", options=CispoOptions)
class Cispo(PolicyGradient[CispoOptions]):
    """REINFORCE with a clipped importance weight.

    Formula: -sg(clip(r, 0, 1 + high)) A l.
    Source: arXiv:2506.13585.
    """

    def objective(self, tokens: PolicyTokens, _state: Any) -> Objective:
        """Returns the weighted log-likelihood."""
        options = self.options
        low, high = 1 - (1.0 if options.clip_low is None else options.clip_low), 1 + options.clip_high
        ratio = tokens.ratio.detach()
        return Objective(
            gain=ratio.clamp(low, high) * tokens.advantages * tokens.logprobs,
            is_clipped=(ratio < low) | (ratio > high),
        )
