"""Score centering: subtracts from a policy gradient the drift that engine and trainer cause when they differ.

The samples come from the engine's distribution q, the scores (gradients of logprobs) from the trainer's p, so the mean
of w * A * grad log p over samples is not zero, even where the advantage A is the same for all of them. That mean is
subtracted. It is computed from the engine's most likely tokens, the head; the tail is modelled as q = rho * p.
Source: arXiv:2609.20807.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from astraflow.algorithms.tokens import TokenData, TokenScores

_MIN_TAIL = 1e-6
"""Smallest probability of the tail under the trainer that divides: below it, the head is all there is."""
_MAX_RHO = 1e3
_LEAST_LOGPROB = -1e20
"""A token below is not in the kept set, over which the trainer renormalises."""

Weights = Callable[[Tensor, Tensor], Tensor]
"""Factors of `grad log p` that the loss gives to candidates, `[tokens, candidates]`, from their trainer's and engine's
logprobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Result for the tokens of a micro-batch. All are `[tokens]`."""

    gain: Tensor
    """To be subtracted from the gain; its gradient is the mean of the weighted scores."""
    head_mass: Tensor
    """Probability of the head under the engine."""
    size: Tensor
    """Sum of the magnitudes of the weights of scores."""
    is_outside: Tensor
    """bool: the sampled token is not in the head, or none was recorded."""


def score_drift(scores: TokenScores, tokens: TokenData, weights: Weights) -> Drift:
    """Returns the drift of each token; 0 where no head was recorded, as of rows from before a change of the loss.

    weights: those of the loss with the token's advantage, for candidates in place of the sampled token.
    """
    if scores.top_logprobs is None or tokens.top_logprobs is None:
        nothing = torch.zeros_like(tokens.behaviour_logprobs)
        return Drift(
            gain=nothing, head_mass=nothing, size=nothing, is_outside=torch.ones_like(nothing, dtype=torch.bool)
        )
    candidates = scores.top_logprobs[:, : tokens.top_logprobs.shape[1]]
    is_recorded = tokens.top_logprobs.isfinite() & (candidates > _LEAST_LOGPROB)
    engine = tokens.top_logprobs.where(is_recorded, 0.0)
    trainer = candidates.where(is_recorded, 0.0)
    current = trainer.detach()
    q, p = (values.exp().where(is_recorded, 0.0) for values in (engine, current))
    head_mass = q.sum(-1)
    rho = ((1 - head_mass).clamp(min=0) / (1 - p.sum(-1)).clamp(min=_MIN_TAIL)).clamp(1 / _MAX_RHO, _MAX_RHO)
    tail = torch.zeros_like(rho)[:, None]
    factors = weights(torch.cat([current, tail], 1), torch.cat([engine, tail + rho.log()[:, None]], 1))
    coefficients = (q * factors[:, :-1] - (rho * factors[:, -1])[:, None] * p).where(is_recorded, 0.0)
    return Drift(
        gain=(coefficients * trainer).sum(-1),
        head_mass=head_mass,
        size=coefficients.abs().sum(-1),
        is_outside=_is_outside(tokens.behaviour_logprobs, tokens.top_logprobs),
    )


def _is_outside(sampled: Tensor, head: Tensor) -> Tensor:
    """Returns whether the engine's logprob of the sampled token is below all of the head. Heads are recorded in
    float16, so that the token is rounded in the same way before it is compared."""
    lowest = head.where(head.isfinite(), torch.inf).min(-1).values
    return sampled.half().to(head) < lowest
