"""Direct preference optimization (DPO, arXiv:2305.18290) on pairs of trajectories of the same prompt."""

from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.base import MicroBatchLoss
from astraflow.algorithms.tokens import BatchStatistics, Pass, Ranks, RowData, TokenData, TokenScores
from astraflow.runtime.config.base import Config


class DpoOptions(Config):
    """Strength of the preference."""

    beta: float = Field(default=0.1, gt=0)
    """Weight of the divergence from the initial weights in the implied reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DpoState:
    """Shares of the rows in loss, gradient and metrics. All are `[rows]`, equal on all ranks."""

    losses: Tensor
    slopes: Tensor
    """Derivative of the batch loss by the row's summed logprob."""
    is_right: Tensor
    """Share in the fraction of pairs whose chosen row has the higher implied reward."""
    margins: Tensor
    """Share in the mean difference of implied rewards."""


@losses.register("dpo", options=DpoOptions)
class Dpo:
    """Mean over all pairs of the same group and slot whose advantages differ; the higher one is chosen.

    Formula: -log sigmoid(beta (D_chosen - D_rejected)), D = sum over the trajectory of l - l_ref.
    Source: arXiv:2305.18290.

    The rows of a pair may be in different micro-batches and ranks: sums under the weights before the step give each
    row's derivative, so that any split has exactly the gradient of the whole.
    """

    needs = frozenset({Pass.CURRENT, Pass.REFERENCE})

    def __init__(self, options: DpoOptions) -> None:
        self._beta = options.beta

    def prepare(self, tokens: TokenData, batch: BatchStatistics, ranks: Ranks) -> DpoState:
        """Compares the rows of the whole optimizer batch."""
        gains = tokens.result(Pass.CURRENT).double() - tokens.result(Pass.REFERENCE).double()
        columns = torch.stack([gains, torch.ones_like(gains)], dim=1)
        totals = columns.new_zeros(len(batch.lengths), 2).index_add(0, tokens.row_indices, columns)
        # Not a mean over the tokens, whose rounding would tell equal rewards of rows of different lengths apart.
        advantages = gains.new_zeros(len(batch.lengths)).scatter_reduce(
            0, tokens.row_indices, tokens.advantages.double(), "amax", include_self=False
        )
        gain, length, advantage = ranks.sum(torch.cat([totals, advantages[:, None]], dim=1)).unbind(1)
        return self._compare(gain, *_pairs(advantage, length > 0, batch.rows))

    def __call__(
        self, scores: TokenScores, tokens: TokenData, batch: BatchStatistics, state: DpoState
    ) -> MicroBatchLoss:
        """Returns the contribution of one micro-batch: the shares of its tokens' rows."""
        rows, logprobs = tokens.row_indices, scores.logprobs
        lengths = batch.lengths[rows]
        shares = (state.losses[rows] / lengths).to(logprobs.dtype)
        slopes = state.slopes[rows].to(logprobs.dtype)
        metrics = {"dpo_accuracy": state.is_right, "dpo_margin": state.margins}
        return MicroBatchLoss(
            loss=(shares + slopes * (logprobs - logprobs.detach())).sum(),
            metric_sums={name: (values[rows] / lengths).sum() * batch.tokens for name, values in metrics.items()},
        )

    def _compare(self, gains: Tensor, chosen: Tensor, rejected: Tensor) -> DpoState:
        """gains: D of the rows, `[rows]`; chosen, rejected: rows of the pairs, `[pairs]`."""
        count = max(len(chosen), 1)
        margins = self._beta * (gains[chosen] - gains[rejected])
        slopes = -self._beta * torch.sigmoid(-margins) / count
        nothing = torch.zeros_like(gains)
        return DpoState(
            losses=nothing.index_add(0, chosen, -logsigmoid(margins) / count),
            slopes=nothing.index_add(0, chosen, slopes).index_add(0, rejected, -slopes),
            is_right=nothing.index_add(0, chosen, (margins > 0).to(gains.dtype) / count),
            margins=nothing.index_add(0, chosen, margins / count),
        )


def _pairs(advantages: Tensor, is_present: Tensor, rows: RowData) -> tuple[Tensor, Tensor]:
    """Returns chosen and rejected rows of all pairs; every argument is `[rows]`. Memory grows with rows^2."""
    groups, slots = rows.groups.to(advantages.device), rows.slots.to(advantages.device)
    is_same = (groups[:, None] == groups) & (slots[:, None] == slots)
    is_pair = is_same & is_present[:, None] & is_present & (advantages[:, None] > advantages)
    chosen, rejected = is_pair.nonzero(as_tuple=True)
    return chosen, rejected
