"""Policy gradient without trust region (REINFORCE, Williams 1992), for corrections and batch-whitened advantages."""

from typing import Annotated, Any

import torch

from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.options import Anchor, AnchoredOptions
from astraflow.algorithms.losses.policy_gradient import Objective, PolicyGradient, PolicyTokens
from astraflow.runtime.config.setting_permissions import SettableBy


class ReinforceOptions(AnchoredOptions):
    """Anchor of the ratio."""

    anchor: Annotated[Anchor, SettableBy.AGENT] = "current"
    """`current`: plain REINFORCE; `behaviour`: with the full importance ratio; `proximal`: for several minibatches."""


@losses.register("reinforce", options=ReinforceOptions)
class Reinforce(PolicyGradient[ReinforceOptions]):
    """Ratio objective without clipping, whose gradient on policy is A times that of l.

    Formula: -rA; with the anchor `current` r = exp(l - sg(l)).
    Source: Williams, 1992; REINFORCE++ (arXiv:2501.03262) with the advantage `batch_whitened`.
    """

    def objective(self, tokens: PolicyTokens, _state: Any) -> Objective:
        """Returns the unclipped objective."""
        is_clipped = torch.zeros_like(tokens.advantages, dtype=torch.bool)
        return Objective(gain=tokens.ratio * tokens.advantages, is_clipped=is_clipped)
