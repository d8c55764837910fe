"""Second-moment trust policy optimization (M2PO, arXiv:2510.01161): the clip range follows from the batch."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.options import PolicyOptions
from astraflow.algorithms.losses.policy_gradient import Objective, PolicyGradient, PolicyTokens
from astraflow.algorithms.losses.ppo import clipped_objective, is_clipped
from astraflow.algorithms.tokens import BatchStatistics, Pass, Ranks, TokenData


class M2poOptions(PolicyOptions):
    """Limit of the second moment, and bounds of the clip range."""

    threshold: float = Field(default=0.04, gt=0)
    """Largest mean of (l_b - l)^2 over tokens that leave the trust region. The original's recipes take 0.01 for
    mathematics and code, 0.004 for agents."""
    max_decrease: float = Field(default=0.95, gt=0, lt=1)
    """The clip range begins at `1 - max_decrease` or above."""
    max_increase: float = Field(default=20.0, gt=0)
    """The clip range ends at `1 + max_increase` or below."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bounds the effect of a token with negative advantage and a huge ratio; None: no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class M2poState:
    """Clip range of an optimizer batch; scalars, equal on all ranks."""

    largest_gap: Tensor
    """Largest log ratio, in magnitude, that is not clipped; infinite when the second moment is within its limit."""
    second_moment: Tensor
    """float64: mean of the squared log ratios of the candidates, before clipping."""


@losses.register("m2po", options=M2poOptions)
class M2po(PolicyGradient[M2poOptions]):
    """Clips as few tokens as bring the second moment of the log ratio to its limit.

    Formula: candidates are tokens with (A > 0, r > 1) or (A < 0, r < 1), d = (l_b - l)^2. Unless mean(d) <= threshold
    already, the largest d are dropped until the mean of the rest is below it; t = sqrt(largest d left). Then PPO with
    the range [1 - min(1 - e^-t, max_decrease), 1 + min(e^t - 1, max_increase)]. Solved once over the optimizer batch
    and all ranks, with the weights before the step.
    Source: arXiv:2510.01161.
    """

    objective_needs = frozenset({Pass.CURRENT})

    def prepare_objective(self, tokens: TokenData, _batch: BatchStatistics, ranks: Ranks) -> M2poState:
        """Solves for the clip range. Exactly equal for any number of ranks, as all candidates are sorted first."""
        log_ratios = tokens.result(Pass.CURRENT) - tokens.behaviour_logprobs
        leaves = ((tokens.advantages > 0) & (log_ratios > 0)) | ((tokens.advantages < 0) & (log_ratios < 0))
        candidates = log_ratios[leaves & log_ratios.isfinite()].abs()
        return solve_clip_range(ranks.gather(candidates), threshold=self.options.threshold)

    def objective(self, tokens: PolicyTokens, state: Any) -> Objective:
        """Returns the objective, clipped in log ratios: the last token inside must not be lost to rounding."""
        options = self.options
        largest_gap = state.largest_gap.to(tokens.log_ratio.dtype)
        low = -largest_gap.clamp(max=-math.log(1 - options.max_decrease))
        high = largest_gap.clamp(max=math.log(1 + options.max_increase))
        clipped = tokens.log_ratio.clamp(low, high)
        advantages = tokens.advantages
        dual = None if options.dual_clip is None else math.log(options.dual_clip)
        metrics = {
            "m2po_ratio_low": low.exp(),
            "m2po_ratio_high": high.exp(),
            "m2po_second_moment": state.second_moment.to(high.dtype),
        }
        return Objective(
            gain=clipped_objective(tokens.ratio, clipped.exp(), advantages, dual=options.dual_clip),
            is_clipped=is_clipped(tokens.log_ratio, advantages, low=low, high=high, dual=dual),
            metrics={name: value.expand_as(advantages) for name, value in metrics.items()},
        )


def solve_clip_range(gaps: Tensor, *, threshold: float) -> M2poState:
    """Returns the clip range for the log ratios, in magnitude, of all candidates; `[candidates]`, in any order."""
    if len(gaps) == 0:
        nothing = gaps.new_zeros((), dtype=torch.float64)
        return M2poState(largest_gap=gaps.new_full((), torch.inf), second_moment=nothing)
    ascending = gaps.sort().values
    counts = torch.arange(1, len(gaps) + 1, device=gaps.device, dtype=torch.float64)
    means = ascending.double().square().cumsum(0) / counts
    kept_count = (means < threshold).sum().clamp(min=1)
    largest_gap = torch.where(means[-1] <= threshold, torch.inf, ascending[kept_count - 1])
    return M2poState(largest_gap=largest_gap, second_moment=means[-1])
