"""Advantages of single tokens: discount by turn, whitening, generalized advantage estimation, distillation."""

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from astraflow.algorithms.base import token_advantages
from astraflow.algorithms.tokens import Pass, Ranks, RowData, TokenData
from astraflow.runtime.config import Config

_NOTHING: frozenset[Pass] = frozenset()


class TurnDiscountOptions(Config):
    """Strength of the discount."""

    gamma: float = Field(default=0.95, gt=0, le=1)
    """Factor for each turn between a token and the end of its trajectory. (GiGPO)"""


@token_advantages.register("turn_discount", options=TurnDiscountOptions)
class TurnDiscount:
    """Credit decays with the number of turns that follow, so that early turns of long episodes weigh less.

    Formula: A x gamma^(last turn - turn).
    Source: GiGPO, arXiv:2505.10978.
    """

    needs = _NOTHING

    def __init__(self, options: TurnDiscountOptions) -> None:
        self._gamma = options.gamma

    def __call__(self, tokens: TokenData, rows: RowData, _ranks: Ranks) -> TokenData:
        """Returns the tokens with discounted advantages."""
        turns = tokens.turn_indices
        last = turns.new_zeros(len(rows.lengths)).scatter_reduce(0, tokens.row_indices, turns, "amax")
        remaining = (last[tokens.row_indices] - turns).to(tokens.advantages.dtype)
        return replace(tokens, advantages=tokens.advantages * self._gamma**remaining)


class WhiteningOptions(Config):
    """Smallest spread of the batch."""

    epsilon: float = Field(default=1e-8, gt=0)
    """Added to the standard deviation."""


@token_advantages.register("whitened", options=WhiteningOptions)
class Whitened:
    """Advantages with mean 0 and standard deviation 1 over all tokens of the batch and all ranks.

    Formula: (A - mean) / (std + epsilon), of the batch's tokens.
    Source: REINFORCE++, arXiv:2501.03262.
    """

    needs = _NOTHING

    def __init__(self, options: WhiteningOptions) -> None:
        self._epsilon = options.epsilon

    def __call__(self, tokens: TokenData, _rows: RowData, ranks: Ranks) -> TokenData:
        """Returns the tokens with whitened advantages."""
        values = tokens.advantages.double()
        total, count = ranks.sum(torch.stack([values.sum(), values.new_tensor(len(values))]))
        centred = values - total / count.clamp(min=1)
        std = (ranks.sum(centred.square().sum()) / (count - 1).clamp(min=1)).sqrt()
        return replace(tokens, advantages=(centred / (std + self._epsilon)).to(tokens.advantages.dtype))


class GaeOptions(Config):
    """Discount and bias of the estimate. Whitening, `{kind = "whitened"}`, usually follows."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount for each token."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """0: one-step differences of the values; 1: the return minus the value."""


@token_advantages.register("gae", options=GaeOptions)
class Gae:
    """Generalized advantage estimation with the values of a critic.

    The incoming advantage of a row's last token is its reward, so only changes of the reward belong into `advantages`.
    The state after the last token has value 0, also in a truncated row.
    Formula: d_t = r_t + gamma V_(t+1) - V_t; A_t = d_t + gamma lambda A_(t+1); returns A_t + V_t.
    Source: arXiv:1506.02438; defaults of PPO for language models (arXiv:2203.02155).
    """

    needs = frozenset({Pass.VALUES})

    def __init__(self, options: GaeOptions) -> None:
        self._options = options

    def __call__(self, tokens: TokenData, _rows: RowData, _ranks: Ranks) -> TokenData:
        """Returns the tokens with advantages and returns."""
        gamma, values = self._options.gamma, tokens.result(Pass.VALUES)
        is_last = torch.ones_like(tokens.row_indices, dtype=torch.bool)
        is_last[:-1] = tokens.row_indices[1:] != tokens.row_indices[:-1]
        following = torch.cat([values[1:], values.new_zeros(min(len(values), 1))]).where(~is_last, 0.0)
        rewards = tokens.advantages.where(is_last, 0.0)
        differences = rewards + gamma * following - values
        decay = torch.full_like(values, gamma * self._options.gae_lambda).where(~is_last, 0.0)
        advantages = decayed_sums(differences, decay)
        return replace(tokens, advantages=advantages, returns=advantages + values)


class DistillationOptions(Config):
    """Weight of the teacher, and the trust region."""

    coefficient: float = Field(default=1.0, gt=0)
    """Weight of the teacher's log ratio."""
    reward_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the incoming advantage; 0: the teacher alone."""
    max_decrease: float = Field(default=0.2, gt=0, le=1)
    """Tokens whose probability fell by more than this since they were sampled are dropped. (prime-rl)"""


@token_advantages.register("distillation", options=DistillationOptions)
class Distillation:
    """On-policy distillation: each token's advantage is how much more likely the teacher finds it.

    Minimizes the divergence from policy to teacher on the policy's own samples. A dropped token has advantage 0; so has
    a token without recorded logprob, which the loss drops too.
    Formula: l_teacher - l_p, dropped where p_p - p_b < -max_decrease.
    Source: arXiv:2306.13649; dropped tokens: prime-rl.
    """

    needs = frozenset({Pass.TEACHER, Pass.PROXIMAL})

    def __init__(self, options: DistillationOptions) -> None:
        self._options = options

    def __call__(self, tokens: TokenData, _rows: RowData, _ranks: Ranks) -> TokenData:
        """Returns the tokens with the teacher's advantages."""
        options, proximal = self._options, tokens.result(Pass.PROXIMAL)
        is_kept = proximal.exp() - tokens.behaviour_logprobs.exp() >= -options.max_decrease
        gain = options.coefficient * (tokens.result(Pass.TEACHER) - proximal)
        advantages = (gain + options.reward_coefficient * tokens.advantages).where(is_kept, 0.0)
        return replace(tokens, advantages=advantages)


def decayed_sums(values: Tensor, decay: Tensor) -> Tensor:
    """Returns s with s_t = values_t + decay_t x s_(t+1), in log2(n) passes; all are `[n]`.

    >>> decayed_sums(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.5, 0.0, 0.5]))
    tensor([2., 2., 4.])
    """
    sums, factors, step = values.clone(), decay.clone(), 1
    while step < len(sums):
        sums[:-step] += factors[:-step] * sums[step:].clone()
        factors[:-step] = factors[:-step] * factors[step:]
        factors[-step:] = 0
        step *= 2
    return sums
