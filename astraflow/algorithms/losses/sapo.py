"""Soft adaptive policy optimization (SAPO, arXiv:2511.20347): a smooth gate instead of a clip range."""

from typing import Annotated, Any

import torch
from pydantic import Field

from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.options import Aggregation, AnchoredOptions
from astraflow.algorithms.losses.policy_gradient import Objective, PolicyGradient, PolicyTokens
from astraflow.runtime.config.setting_permissions import SettableBy


class SapoOptions(AnchoredOptions):
    """Steepness of the gate."""

    temperature_positive: float = Field(default=1.0, gt=0)
    """For positive advantages."""
    temperature_negative: float = Field(default=1.05, gt=0)
    """For other advantages; more, since their gradients raise many other tokens and are less stable."""
    aggregation: Annotated[Aggregation, SettableBy.AGENT] = "sequence_mean"
    """Every trajectory has the same weight, as in the paper."""


@losses.register("sapo", options=SapoOptions)
class Sapo(PolicyGradient[SapoOptions]):
    """Gate whose slope is 1 on policy and decays away from it.

    Formula: -sigmoid(t (r - 1)) (4 / t) A; t by the sign of A.
    Source: arXiv:2511.20347.
    """

    def objective(self, tokens: PolicyTokens, _state: Any) -> Objective:
        """Returns the gated objective."""
        positive, negative = self.options.temperature_positive, self.options.temperature_negative
        steepness = torch.full_like(tokens.advantages, negative).masked_fill(tokens.advantages > 0, positive)
        gate = torch.sigmoid(steepness * (tokens.ratio - 1))
        slope = (4 * gate * (1 - gate)).detach()
        return Objective(
            gain=4 / steepness * gate * tokens.advantages,
            is_clipped=torch.zeros_like(tokens.advantages, dtype=torch.bool),
            metrics={"gate_slope": slope},
        )
