"""Advantages of single tokens: by turn, whitening, generalized advantage estimation, distillation."""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from astraflow.algorithms.advantages import GroupOptions, compared_groups
from astraflow.algorithms.base import token_advantages
from astraflow.algorithms.tokens import Pass, Ranks, RowData, TokenData
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

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
        turns = tokens.turn_indices
        last = turns.new_zeros(len(rows.lengths)).scatter_reduce(0, tokens.row_indices, turns, "amax")
        remaining = (last[tokens.row_indices] - turns).to(tokens.advantages.dtype)
        return replace(tokens, advantages=tokens.advantages * self._gamma**remaining)


class TurnReturnsOptions(GroupOptions):
    """Rows that are compared with each other."""

    baseline: Annotated[Literal["group", "none"], SettableBy.AGENT] = "group"
    """Value that is subtracted: the mean return of the group's turns, in which each trajectory weighs the same, or
    none."""


@token_advantages.register("turn_returns", options=TurnReturnsOptions)
class TurnReturns:
    """Rewards of each token's own turn and of the turns after it, compared with the group.

    The incoming advantage of a row is its reward R, so only changes of the reward belong into `advantages`. The part of
    R that is no turn's reward is added to the last turn; so a row without turn rewards has R there. Discounts are those
    that the workflow gave; 1 without.
    Formula: G_k = r_k + d_k G_(k+1), A = G_k - mean of the group, for the tokens of turn k.
    Source: REINFORCE with reward to go; rewards of steps: DeepSeekMath, arXiv:2402.03300, section 4.1.3.
    """

    needs = _NOTHING

    def __init__(self, options: TurnReturnsOptions) -> None:
        self._options = options

    def __call__(self, tokens: TokenData, rows: RowData, ranks: Ranks) -> TokenData:
        rewards, discounts = _placed_rewards(tokens, len(rows.lengths))
        returns = decayed_sums(rewards, discounts)
        if self._options.baseline == "group":
            groups = compared_groups(rows, per_slot=self._options.per_slot)
            returns = returns - _mean_returns(returns, tokens, groups, ranks)[tokens.row_indices]
        return replace(tokens, advantages=returns)


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
    The rewards of turns, if any, are at the last tokens of their turns, and the rest of the reward at the last token.
    The state after the last token has value 0, also in a truncated row. gamma is multiplied by the discount of a turn,
    if any, at its last token.
    Formula: d_t = r_t + gamma V_(t+1) - V_t; A_t = d_t + gamma lambda A_(t+1); returns A_t + V_t.
    Source: arXiv:1506.02438; defaults of PPO for language models (arXiv:2203.02155).
    """

    needs = frozenset({Pass.VALUES})

    def __init__(self, options: GaeOptions) -> None:
        self._options = options

    def __call__(self, tokens: TokenData, rows: RowData, _ranks: Ranks) -> TokenData:
        values = tokens.result(Pass.VALUES)
        rewards, discounts = _placed_rewards(tokens, len(rows.lengths))
        gamma = self._options.gamma * discounts
        following = torch.cat([values[1:], values.new_zeros(min(len(values), 1))])
        advantages = decayed_sums(rewards + gamma * following - values, gamma * self._options.gae_lambda)
        return replace(tokens, advantages=advantages, returns=advantages + values)


class DistillationOptions(Config):
    """Weight of the teacher, and the trust region."""

    coefficient: float = Field(default=1.0, gt=0)
    """Weight of the teacher's log ratio."""
    reward_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the incoming advantage; 0: only the teacher counts."""
    max_decrease: float = Field(default=0.2, gt=0, le=1)
    """Tokens whose probability fell by more than this since they were sampled are dropped. (prime-rl)"""


@token_advantages.register("distillation", options=DistillationOptions)
class Distillation:
    """On-policy distillation: each token's advantage is how much more likely the teacher finds it.

    Minimizes the divergence from policy to teacher on the policy's own samples. A dropped token has advantage 0; so has
    a token without recorded logprob, which the loss drops too, and one whose teacher's logprob is not a finite number.
    With several optimizer steps per batch the policy is that at the start of the batch in all of them.
    Formula: l_teacher - l_p, dropped where p_p - p_b < -max_decrease.
    Source: arXiv:2306.13649; dropped tokens: prime-rl.
    """

    needs = frozenset({Pass.TEACHER, Pass.PROXIMAL})

    def __init__(self, options: DistillationOptions) -> None:
        self._options = options

    def __call__(self, tokens: TokenData, _rows: RowData, _ranks: Ranks) -> TokenData:
        options, proximal = self._options, tokens.result(Pass.PROXIMAL)
        is_kept = proximal.exp() - tokens.behaviour_logprobs.exp() >= -options.max_decrease
        gain = options.coefficient * (tokens.result(Pass.TEACHER) - proximal)
        advantages = (gain + options.reward_coefficient * tokens.advantages).where(is_kept & gain.isfinite(), 0.0)
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
        step *= 2
    return sums


def _placed_rewards(tokens: TokenData, rows: int) -> tuple[Tensor, Tensor]:
    """Returns the reward of each token and the weight of what follows it, `[tokens]`.

    The reward of a turn is at its last token, and the rest of the row's reward, its incoming advantage, at the last
    token of the row. The weight is the turn's discount at the last token of a turn, 0 at the last of a row, else 1.
    """
    is_row_end, is_turn_end = _last_tokens(tokens.row_indices), _last_tokens(tokens.row_indices, tokens.turn_indices)
    whole = tokens.advantages.where(is_row_end, 0.0)
    weights = torch.ones_like(tokens.advantages)
    if tokens.turn_discounts is not None:
        weights = tokens.turn_discounts.to(weights.dtype).where(is_turn_end, weights)
    weights = weights.where(~is_row_end, 0.0)
    if tokens.turn_rewards is None:
        return whole, weights
    of_turns = tokens.turn_rewards.to(whole.dtype).where(is_turn_end, 0.0)
    totals = whole.new_zeros(rows).index_add_(0, tokens.row_indices, of_turns)
    return of_turns + (whole - totals[tokens.row_indices]).where(is_row_end, 0.0), weights


def _last_tokens(*indices: Tensor) -> Tensor:
    """Returns bool `[tokens]`: the next token has another index. The last token of all is one."""
    is_last = torch.ones_like(indices[0], dtype=torch.bool)
    if len(is_last) > 1:
        is_last[:-1] = torch.stack([values[1:] != values[:-1] for values in indices]).any(0)
    return is_last


def _mean_returns(returns: Tensor, tokens: TokenData, groups: Tensor, ranks: Ranks) -> Tensor:
    """Returns the mean return of each row's group, `[rows]`: over the trajectories that have tokens on any rank, each
    with the mean of its turns."""
    exact = returns.double()  # in which sums of equal float32 values stay equal, so that their advantage is 0
    ends = _last_tokens(tokens.row_indices, tokens.turn_indices).to(exact.dtype)
    sums, turns = exact.new_zeros(2, len(groups)).index_add_(1, tokens.row_indices, torch.stack([exact, ends]) * ends)
    means, has_tokens = sums / turns.clamp(min=1), (turns > 0).to(exact.dtype)
    count = int(groups.max()) + 1 if len(groups) else 0
    totals = ranks.sum(exact.new_zeros(2, count).index_add_(1, groups, torch.stack([means, has_tokens])))
    return (totals[0] / totals[1].clamp(min=1))[groups].to(returns.dtype)
