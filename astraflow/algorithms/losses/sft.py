"""Supervised fine-tuning: negative log-likelihood of the counted tokens; needs neither rewards nor an engine."""

from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.base import MicroBatchLoss, token_weights
from astraflow.algorithms.losses.options import AggregationOptions
from astraflow.algorithms.tokens import BatchStatistics, Pass, Ranks, TokenData, TokenScores


class SftOptions(AggregationOptions):
    """Weights of tokens in the mean."""


@losses.register("sft", options=SftOptions)
class Sft:
    """Negative log-likelihood over its own counted tokens. Advantages and recorded logprobs are not read.

    Formula: -l.
    Source: maximum likelihood.
    """

    needs: frozenset[Pass] = frozenset()

    def __init__(self, options: SftOptions) -> None:
        self._options = options

    def prepare(self, _tokens: TokenData, _batch: BatchStatistics, _ranks: Ranks) -> None:
        """Computes nothing."""

    def __call__(self, scores: TokenScores, tokens: TokenData, batch: BatchStatistics, _state: None) -> MicroBatchLoss:
        weights = token_weights(tokens, batch, self._options, dtype=scores.logprobs.dtype)
        loss = -(weights * scores.logprobs).sum()
        return MicroBatchLoss(loss=loss, metric_sums={"nll": -scores.logprobs.detach().sum()})
