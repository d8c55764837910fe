"""Interface of losses, and the averaging of a batch's tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from astraflow.algorithms.losses.options import AggregationOptions
from astraflow.algorithms.tokens import BatchStatistics, Pass, Ranks, TokenData, TokenScores

if TYPE_CHECKING:
    from torch import Tensor, dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchLoss:
    """Contribution of a micro-batch. Summed over all, `loss` is the batch loss, `sums / tokens` are its metrics."""

    loss: Tensor
    metric_sums: Mapping[str, Tensor]
    """Metric name -> its sum over these tokens."""


class Loss(Protocol):
    """Loss of a policy. Built by `losses.build(spec)`."""

    @property
    def needs(self) -> frozenset[Pass]:
        """Forward passes without gradient whose results the loss reads."""

    def prepare(self, tokens: TokenData, batch: BatchStatistics, ranks: Ranks) -> Any:
        """Computes what the loss needs of the whole optimizer batch, before its first gradient; passed to each call.

        tokens: this rank's share, which may be empty. Collective: called on every rank.
        """

    def __call__(self, scores: TokenScores, tokens: TokenData, batch: BatchStatistics, state: Any) -> MicroBatchLoss:
        """Returns the contribution of one micro-batch. state: result of `prepare`."""


def token_weights(tokens: TokenData, batch: BatchStatistics, options: AggregationOptions, *, dtype: dtype) -> Tensor:
    """Returns the weight of each token, `[tokens]`; over a whole batch they sum to 1, except for `fixed_length`."""
    lengths = batch.lengths[tokens.row_indices].to(dtype)
    rows = max(batch.trajectories, 1)
    match options.aggregation:
        case "token_mean":
            return lengths.new_full(lengths.shape, 1 / max(batch.tokens, 1))
        case "sequence_mean":
            return 1 / (lengths * rows)
        case "fixed_length":
            return lengths.new_full(lengths.shape, 1 / ((options.fixed_length or 1) * rows))
