"""Loss of the critic of PPO (arXiv:1707.06347), the clipped squared error of its values, and a measure of them."""

import torch
from pydantic import Field
from torch import Tensor

from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.base import MicroBatchLoss, token_weights
from astraflow.algorithms.losses.options import AggregationOptions
from astraflow.algorithms.tokens import BatchStatistics, Pass, Ranks, TokenData, TokenScores
from astraflow.contract.errors import InvalidInput


class CriticOptions(AggregationOptions):
    """Range of the clip."""

    value_clip: float | None = Field(default=0.2, gt=0)
    """Largest change of a value since the start of the batch that lowers the loss; None: no clip."""


@losses.register("critic", options=CriticOptions)
class Critic:
    """Squared error of the values against the returns of `gae`. Loss of the critic's model, not of a policy.

    Formula: max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2) / 2.
    Source: the reference implementation of arXiv:1707.06347.
    """

    needs = frozenset({Pass.VALUES})

    def __init__(self, options: CriticOptions) -> None:
        self._options = options

    def prepare(self, _tokens: TokenData, _batch: BatchStatistics, _ranks: Ranks) -> None:
        """Computes nothing."""

    def __call__(self, scores: TokenScores, tokens: TokenData, batch: BatchStatistics, _state: None) -> MicroBatchLoss:
        """Returns the contribution of one micro-batch. Raises: InvalidInput without values or returns."""
        if scores.values is None or tokens.returns is None:
            raise InvalidInput(
                "cannot compute the loss of the critic: values or returns are absent; use the loss with a critic's "
                "model and the token advantage 'gae'",
                code="algorithm.critic_data_missing",
            )
        old, clip = tokens.result(Pass.VALUES), self._options.value_clip
        error = (scores.values - tokens.returns).square()
        clipped = error if clip is None else (scores.values.clamp(old - clip, old + clip) - tokens.returns).square()
        weights = token_weights(tokens, batch, self._options, dtype=error.dtype)
        sums = {"value_error": error.detach().sum(), "value_clip_fraction": (clipped > error).sum()}
        return MicroBatchLoss(loss=(weights * torch.maximum(error, clipped)).sum() / 2, metric_sums=sums)


def explained_variance(values: Tensor, returns: Tensor, ranks: Ranks) -> float:
    """Returns 1 - var(returns - values) / var(returns) over the tokens of all ranks: 1 for a perfect critic, 0 or less
    for one that knows nothing; not a number when all returns are equal. Collective.

    values, returns: `[tokens]`, values of the start of the batch.

    >>> from astraflow.algorithms.tokens import SingleRank
    >>> explained_variance(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0]), SingleRank())
    0.75
    """
    samples = torch.stack([returns, returns - values]).double()
    count = ranks.sum(samples.new_tensor(samples.shape[1]))
    means = ranks.sum(samples.sum(1)) / count.clamp(min=1)
    spread, unexplained = ranks.sum((samples - means[:, None]).square().sum(1)).tolist()
    return 1 - unexplained / spread if spread else float("nan")
