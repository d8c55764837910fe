"""Measures of the mismatch between engine and trainer, and the bound at which training stops.

Only rows sampled wholly with the trainer's own version are measured: for them engine and trainer compute the same
distribution, so every difference is numerical, or an error of temperature, of the template or of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from astraflow.algorithms.divergence import bounded_exp
from astraflow.contract.errors import InvalidInput
from astraflow.contract.mismatch import mismatch_cause
from astraflow.contract.record_causes import CAUSES
from astraflow.contract.records import fill

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from astraflow.algorithms.config import AlgorithmConfig
    from astraflow.algorithms.tokens import Ranks, TokenData

_LOW, _HIGH = 0.5, 5.0
"""Range of ratios that IcePop keeps by default (`corrections.weights`)."""
_NOISE = 1e-3
"""Mean distance of ratios from 1 below which its direction is that of rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchSums:
    """Sums over tokens of the trainer's own version, of a micro-batch or of a batch."""

    sums: Tensor
    """float64 `[8]`: tokens, k3, Jensen-Shannon divergence, exp of the absolute log ratio, ratio, squared ratio, tokens
    outside the range, distance of the ratio from 1."""
    max_mismatch: Tensor
    """float64 scalar: largest absolute log ratio."""
    rows: Tensor
    """float64 `[2, rows]`: tokens and k3 of each row of the batch."""

    def __add__(self, other: MismatchSums) -> MismatchSums:
        """Returns the sums over both."""
        return MismatchSums(
            sums=self.sums + other.sums,
            max_mismatch=torch.maximum(self.max_mismatch, other.max_mismatch),
            rows=self.rows + other.rows,
        )

    def over(self, ranks: Ranks) -> MismatchSums:
        """Returns the sums over all ranks; collective."""
        return MismatchSums(
            sums=ranks.sum(self.sums),
            max_mismatch=ranks.gather(self.max_mismatch[None]).max(),
            rows=ranks.sum(self.rows),
        )

    def metrics(self, *, bound: float | None) -> dict[str, float]:
        """Returns the metrics; empty without tokens of the own version. bound: `max_mismatch`.

        `mismatch_k3`: mean of r - 1 - log r, an estimate of the divergence. `mismatch_js`: mean of
        (r log r - (1 + r) log((1 + r) / 2)) / 2, an estimate of the Jensen-Shannon divergence. `mismatch_factor`: mean
        of exp |log r|, 1 without mismatch. `mismatch_sample_size`: effective share of the samples,
        (sum r)^2 / (n sum r^2). `mismatch_cut`: share of tokens with r outside 0.5 .. 5, which IcePop cuts by default.
        `mismatch_mass`: mean of r, the probability under the trainer of what the engine samples from.
        `mismatch_one_sided`: what it lacks to 1, relative to the mean of |r - 1|, 0 where that is below 0.001.
        `mismatch_max`: largest |log r|.
        `mismatch_of_bound`: k3 relative to the bound. r is trainer over engine.
        """
        tokens, k3, js, factor, ratio, square, cut, distance = self.sums.tolist()
        if tokens == 0:
            return {}
        of_bound = {} if bound is None else {"mismatch_of_bound": k3 / tokens / bound}
        return {
            "mismatch_k3": k3 / tokens,
            "mismatch_js": js / tokens,
            "mismatch_factor": factor / tokens,
            "mismatch_sample_size": ratio**2 / (tokens * square),
            "mismatch_cut": cut / tokens,
            "mismatch_mass": ratio / tokens,
            "mismatch_one_sided": (tokens - ratio) / distance if distance > _NOISE * tokens else 0.0,
            "mismatch_max": float(self.max_mismatch),
            **of_bound,
        }


@torch.no_grad()
def measure_mismatch(logprobs: Tensor, tokens: TokenData, *, rows: int) -> MismatchSums:
    """Returns the sums of these tokens, without those whose recorded logprob is not a finite number.

    logprobs: `[tokens]`, under the weights at the start of the batch: of the proximal pass, or of the training passes
    of the first optimizer step. rows: of the batch.
    """
    log_ratio = (logprobs - tokens.behaviour_logprobs).double()
    is_own = tokens.is_own_version & log_ratio.isfinite()
    log_ratio = log_ratio.where(is_own, 0.0)
    ratio, gap = bounded_exp(log_ratio), log_ratio.abs()
    is_cut = (ratio < _LOW) | (ratio > _HIGH)
    js = (ratio * ratio.log() - (1 + ratio) * torch.log1p((ratio - 1) / 2)) / 2  # log1p is exact near a ratio of 1
    distance = (ratio - 1).abs()
    measures = [ratio - 1 - log_ratio, js, bounded_exp(gap), ratio, ratio.square(), is_cut.double(), distance]
    columns = [torch.ones_like(ratio), *measures]
    sums = torch.stack([column.where(is_own, 0.0).sum() for column in columns])
    by_row = torch.stack([is_own.double(), measures[0].where(is_own, 0.0)])
    return MismatchSums(
        sums=sums,
        max_mismatch=torch.cat([gap, gap.new_zeros(1)]).max(),
        rows=by_row.new_zeros(2, rows).index_add_(1, tokens.row_indices, by_row),
    )


def check_mismatch(exceeded_steps: int, metrics: Mapping[str, float], config: AlgorithmConfig) -> int:
    """Returns the number of consecutive steps above the bound, including the step with these metrics.

    exceeded_steps: the previous result, 0 at start. metrics: those of `MismatchSums.metrics`; without them the step had
    no tokens of the own version, which changes nothing. Raises: InvalidInput at `max_mismatch_steps`, as more training
    would not mend it.
    """
    k3 = metrics.get("mismatch_k3")
    if config.max_mismatch is None or k3 is None:
        return exceeded_steps
    if k3 <= config.max_mismatch:
        return 0
    exceeded_steps += 1
    if exceeded_steps >= config.max_mismatch_steps:
        cause, values = mismatch_cause(metrics)
        raise InvalidInput(
            f"cannot go on training: for {exceeded_steps} steps the divergence of engine and trainer was above "
            f"max_mismatch {config.max_mismatch}: {fill(CAUSES[cause], values)}",
            code="algorithm.mismatch",
        )
    return exceeded_steps
