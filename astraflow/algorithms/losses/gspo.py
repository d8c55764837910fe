"""Group sequence policy optimization (GSPO, arXiv:2507.18071): one ratio for each trajectory."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from astraflow.algorithms.divergence import bounded_exp
from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.options import Aggregation, Anchor, AnchoredOptions
from astraflow.algorithms.losses.policy_gradient import Objective, PolicyGradient, PolicyTokens
from astraflow.algorithms.losses.ppo import clipped_objective, is_clipped
from astraflow.runtime.config.setting_permissions import SettableBy


class GspoOptions(AnchoredOptions):
    """Clip range of the sequence ratio. The paper takes 4 minibatches from each batch; with one, the ratio is 1 and
    nothing is clipped, and the anchor `current` saves a pass."""

    has_sequence_ratio: ClassVar[bool] = True

    clip_low: float = Field(default=3e-4, gt=0, lt=1)
    """No gradient below the sequence ratio `1 - clip_low`."""
    clip_high: float = Field(default=4e-4, gt=0)
    """No gradient above the sequence ratio `1 + clip_high`. The geometric mean of the ratios varies far less than the
    ratio of a token, so the range is narrow."""
    anchor: Annotated[Anchor, SettableBy.AGENT] = "proximal"
    """Mismatch of engine and trainer alone exceeds the clip range, so the ratio to `behaviour` is of little use."""
    aggregation: Annotated[Aggregation, SettableBy.AGENT] = "sequence_mean"
    """Every trajectory has the same weight, as in the paper."""


@losses.register("gspo", options=GspoOptions)
class Gspo(PolicyGradient[GspoOptions]):
    """Clipped geometric mean of the ratios of a trajectory.

    Formula: -min(sA, clip(s, 1 - low, 1 + high)A), s = exp(mean over the trajectory of l - l_p); for token advantages
    s becomes s x exp(l - sg(l)), whose gradient is the same for equal advantages.
    Source: arXiv:2507.18071.
    """

    def objective(self, tokens: PolicyTokens, _state: Any) -> Objective:
        """Returns the clipped objective in its token form."""
        low, high = 1 - self.options.clip_low, 1 + self.options.clip_high
        mean = tokens.mismatch.row_means(tokens.log_ratio.detach())
        ratio = bounded_exp(mean + tokens.logprobs - tokens.logprobs.detach())
        return Objective(
            gain=clipped_objective(ratio, ratio.clamp(low, high), tokens.advantages, dual=None),
            is_clipped=is_clipped(ratio, tokens.advantages, low=low, high=high),
            metrics={"sequence_ratio_mean": ratio},
        )
