"""Divergence PPO (arXiv:2602.04879): a trust region in probabilities instead of ratios; and its symmetric variant."""

from typing import Annotated, Any

import torch
from pydantic import Field

from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.options import PolicyOptions
from astraflow.algorithms.losses.policy_gradient import Objective, PolicyGradient, PolicyTokens
from astraflow.runtime.config.setting_permissions import SettableBy

_LIMIT, _SYMMETRIC_LIMIT = 0.2, 0.1


class DppoOptions(PolicyOptions):
    """Trust region around the behaviour policy. A ratio says little about a rare token, a difference does."""

    is_symmetric: Annotated[bool, SettableBy.AGENT] = False
    """Masks differences of either direction for all advantages, as IPO of prime-rl does."""
    limit_low: float | None = Field(default=None, gt=0, le=1)
    """Largest decrease of the probability; None: 0.2, symmetric 0.1."""
    limit_high: float | None = Field(default=None, gt=0, le=1)
    """Largest increase of the probability; None: 0.2, symmetric 0.1."""
    drift_coefficient: float = Field(default=1e-3, ge=0)
    """Weight of the squared log ratio of all tokens, including masked ones. (prime-rl)"""


@losses.register("dppo", options=DppoOptions)
class Dppo(PolicyGradient[DppoOptions]):
    """Ratio objective that masks tokens whose probability moved too far in the direction of their advantage.

    Formula: -rA unless (A > 0 and p - p_b > high) or (A < 0 and p_b - p > low); plus drift x (l - l_b)^2.
    Source: arXiv:2602.04879 (binary total variation); drift and symmetric variant: prime-rl.
    """

    def objective(self, tokens: PolicyTokens, _state: Any) -> Objective:
        """Returns the masked objective and the penalty for drift."""
        options = self.options
        default = _SYMMETRIC_LIMIT if options.is_symmetric else _LIMIT
        change = tokens.logprobs.detach().exp() - tokens.behaviour_logprobs.exp()
        is_high, is_low = change > (options.limit_high or default), -change > (options.limit_low or default)
        if not options.is_symmetric:
            is_high, is_low = is_high & (tokens.advantages > 0), is_low & (tokens.advantages < 0)
        is_masked = is_high | is_low
        drift = tokens.behaviour_log_ratio.square()
        return Objective(
            gain=torch.where(is_masked, 0.0, tokens.ratio * tokens.advantages),
            is_clipped=is_masked,
            penalty=options.drift_coefficient * drift,
            metrics={"drift": drift},
        )
