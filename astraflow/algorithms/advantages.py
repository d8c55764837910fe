"""Advantages: how much better each trajectory is than its group or its batch."""

from typing import Annotated

import torch
from pydantic import Field, model_validator
from torch import Tensor

from astraflow.algorithms.base import advantages
from astraflow.algorithms.tokens import RowData
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

_ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-12}
"""Share of the largest value that a sum of thousands of values may be off by, by its element type."""


class GroupOptions(Config):
    """Rows that are compared with each other."""

    per_slot: Annotated[bool, SettableBy.AGENT] = False
    """Compares a row with rows of the same slot only: for workflows in which one policy has several roles, such as
    planner and solver, whose rewards have different levels."""


class GroupNormalizationOptions(GroupOptions):
    """Rows that are compared with each other, and the smallest spread."""

    epsilon: float = Field(default=1e-4, gt=0)
    """Added to the standard deviation, so that near-equal rewards do not become huge advantages."""


class MaxRlOptions(GroupOptions):
    """Rows that are compared with each other, and the smallest mean."""

    epsilon: float = Field(default=1e-6, gt=0)
    """Added to the mean, so that a mean near 0 does not become a huge advantage."""


class BatchNormalizationOptions(Config):
    """Smallest spread of the batch."""

    epsilon: float = Field(default=1e-4, gt=0)
    """Added to the standard deviation, so that near-equal rewards do not become huge advantages."""


class OverlongOptions(Config):
    """Stretch of lengths over which the penalty grows."""

    max_tokens: int = Field(ge=1)
    """Length of the full penalty, usually the generation limit. Tokens."""
    buffer_tokens: int = Field(default=4096, ge=1)
    """The penalty begins this much before `max_tokens`. (DAPO: 4096 before 20480)"""
    penalty: float = Field(default=1.0, gt=0)
    """Full penalty, in units of the reward."""

    @model_validator(mode="after")
    def _check_buffer(self) -> "OverlongOptions":
        if self.buffer_tokens > self.max_tokens:
            raise ValueError(f"buffer_tokens is above max_tokens {self.max_tokens}; reduce buffer_tokens")
        return self


def group_relative(values: Tensor, groups: Tensor, weights: Tensor, *, epsilon: float = 1e-4) -> Tensor:
    """Returns values minus the group's mean, divided by the group's standard deviation; 0 in groups of equal rewards.

    values, groups, weights: `[trajectories]`, weights bool or float; returns `[trajectories]`.
    Source: DeepSeekMath, arXiv:2402.03300, section 4.1.2.

    >>> import torch
    >>> rewards, groups = torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1])
    >>> group_relative(rewards, groups, torch.tensor([True] * 4))
    tensor([ 0.7070, -0.7070,  0.0000,  0.0000])
    """
    spreads = group_stds(values, groups, weights)
    return group_centred(values, groups, weights) / (spreads + epsilon)


def group_centred(values: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
    """Returns values minus the group's mean, in units of the reward: hard and easy prompts are not weighted up.

    Source: Dr. GRPO, arXiv:2503.20783.
    """
    return group_deviations(values, groups, weights)


def leave_one_out(values: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
    """Returns values minus the mean of the other group members: unbiased, as the baseline is independent of the sample.

    A group with a single member gets 0. Source: RLOO, arXiv:2402.14740.
    """
    counts = group_counts(groups, weights)
    return group_centred(values, groups, weights) * counts / (counts - 1).clamp(min=1)


def batch_whitened(values: Tensor, weights: Tensor, *, epsilon: float = 1e-4) -> Tensor:
    """Returns values minus the batch mean, divided by the batch's standard deviation; all episodes weigh the same.

    A mean that is a rounding error counts as 0: after a comparison within groups the mean is 0, and rows without signal
    must keep the advantage 0, which losses and metrics test for.
    Source: REINFORCE++, arXiv:2501.03262.
    """
    mean = masked_mean(values, weights)
    largest = values.where(weights > 0, 0.0).abs().max() if len(values) else mean
    mean = mean.where(mean.abs() > _ROUNDING[values.dtype] * largest, 0.0)
    return ((values - mean) / (masked_std(values, weights) + epsilon)).where(weights > 0, 0.0)


def maxrl(values: Tensor, groups: Tensor, weights: Tensor, *, epsilon: float = 1e-6) -> Tensor:
    """Returns values minus the group's mean, divided by the mean; 0 in groups whose mean is not positive.

    For rewards that are not negative. Hard prompts weigh more, as in the gradient of the log of the success rate.
    Source: MaxRL, arXiv:2602.02710.
    """
    means = group_means(values, groups, weights)
    relative = group_centred(values, groups, weights) / (means.clamp(min=0) + epsilon)
    return relative.where(means > 0, 0.0)


def overlong_penalty(values: Tensor, lengths: Tensor, options: OverlongOptions) -> Tensor:
    """Returns values minus a penalty that grows linearly over the last stretch of the length limit.

    lengths: int64 `[rows]`. Source: DAPO, arXiv:2503.14476, equation 13.
    """
    begin = options.max_tokens - options.buffer_tokens
    share = ((lengths - begin).to(values.dtype) / options.buffer_tokens).clamp(0, 1)
    return values - options.penalty * share


def compared_groups(rows: RowData, *, per_slot: bool) -> Tensor:
    """Returns the number of each row's group of compared rows: int64 `[rows]`."""
    if not per_slot or not len(rows.groups):
        return rows.groups
    return rows.groups * (rows.slots.max() + 1) + rows.slots


@advantages.register("group_relative", options=GroupNormalizationOptions)
class GroupRelative:
    """GRPO: distance from the group's mean in units of its spread.

    Formula: (R - mean) / (std + epsilon), of the group.
    Source: arXiv:2402.03300.
    """

    def __init__(self, options: GroupNormalizationOptions) -> None:
        self._options = options

    def __call__(self, values: Tensor, rows: RowData) -> Tensor:
        """Returns the advantages, `[rows]`."""
        groups = compared_groups(rows, per_slot=self._options.per_slot)
        return group_relative(values, groups, rows.weights, epsilon=self._options.epsilon)


@advantages.register("group_centred", options=GroupOptions)
class GroupCentred:
    """Dr. GRPO: distance from the group's mean in units of the reward, so groups weigh by their spread.

    Formula: R - mean, of the group.
    Source: arXiv:2503.20783.
    """

    def __init__(self, options: GroupOptions) -> None:
        self._options = options

    def __call__(self, values: Tensor, rows: RowData) -> Tensor:
        """Returns the advantages, `[rows]`."""
        return group_centred(values, compared_groups(rows, per_slot=self._options.per_slot), rows.weights)


@advantages.register("leave_one_out", options=GroupOptions)
class LeaveOneOut:
    """RLOO: distance from the mean of the others, a baseline that is independent of the sample.

    Formula: R - mean of the other members of the group.
    Source: arXiv:2402.14740.
    """

    def __init__(self, options: GroupOptions) -> None:
        self._options = options

    def __call__(self, values: Tensor, rows: RowData) -> Tensor:
        """Returns the advantages, `[rows]`."""
        return leave_one_out(values, compared_groups(rows, per_slot=self._options.per_slot), rows.weights)


@advantages.register("maxrl", options=MaxRlOptions)
class MaxRl:
    """MaxRL: distance from the group's mean in units of the mean, so hard prompts weigh more.

    Formula: (R - mean) / (mean + epsilon), of the group; 0 where mean <= 0.
    Source: arXiv:2602.02710.
    """

    def __init__(self, options: MaxRlOptions) -> None:
        self._options = options

    def __call__(self, values: Tensor, rows: RowData) -> Tensor:
        """Returns the advantages, `[rows]`."""
        groups = compared_groups(rows, per_slot=self._options.per_slot)
        return maxrl(values, groups, rows.weights, epsilon=self._options.epsilon)


@advantages.register("batch_whitened", options=BatchNormalizationOptions)
class BatchWhitened:
    """REINFORCE++: distance from the batch's mean in units of its spread.

    Formula: (R - mean) / (std + epsilon), of the batch.
    Source: arXiv:2501.03262.
    """

    def __init__(self, options: BatchNormalizationOptions) -> None:
        self._epsilon = options.epsilon

    def __call__(self, values: Tensor, rows: RowData) -> Tensor:
        """Returns the advantages, `[rows]`."""
        return batch_whitened(values, rows.weights, epsilon=self._epsilon)


@advantages.register("overlong_penalty", options=OverlongOptions)
class OverlongPenalty:
    """DAPO: penalty for long answers. Changes the reward, so it comes first in the list.

    Formula: R - penalty x clip((length - (max_tokens - buffer_tokens)) / buffer_tokens, 0, 1).
    Source: arXiv:2503.14476.
    """

    def __init__(self, options: OverlongOptions) -> None:
        self._options = options

    def __call__(self, values: Tensor, rows: RowData) -> Tensor:
        """Returns the rewards, `[rows]`."""
        return overlong_penalty(values, rows.lengths, self._options).where(rows.is_counted, 0.0)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Returns the mean of the values where `mask` is True; 0 when there are none.

    >>> masked_mean(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([True, True, False]))
    tensor(2.)
    """
    return _weighted(values, mask).sum() / mask.sum().clamp(min=1)


def masked_std(values: Tensor, mask: Tensor) -> Tensor:
    """Returns the sample standard deviation of the values where `mask` is True; 0 for fewer than two.

    >>> masked_std(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([True, True, False]))
    tensor(1.4142)
    """
    squares = _weighted((values - masked_mean(values, mask)).square(), mask).sum()
    return (squares / (mask.sum() - 1).clamp(min=1)).sqrt()


def group_counts(groups: Tensor, mask: Tensor) -> Tensor:
    """Returns the number of counted members in each element's group, or their weight: `[n]` for groups `[n]`.

    >>> group_counts(torch.tensor([0, 0, 1]), torch.tensor([True, True, False]))
    tensor([2, 2, 0])
    """
    return _totals(mask.long() if mask.dtype == torch.bool else mask, groups)[groups]


def group_means(values: Tensor, groups: Tensor, mask: Tensor) -> Tensor:
    """Returns the mean of each element's group over the counted members: `[n]`.

    >>> group_means(torch.tensor([1.0, 3.0, 7.0]), torch.tensor([0, 0, 1]), torch.tensor([True, True, True]))
    tensor([2., 2., 7.])
    """
    return _totals(_weighted(values, mask), groups)[groups] / group_counts(groups, mask).clamp(min=1)


def group_deviations(values: Tensor, groups: Tensor, mask: Tensor) -> Tensor:
    """Returns the values minus the mean of their group: `[n]`. Exactly 0 in a group of equal values, whose sum divided
    by their number would differ from them in its last bits; 0 for elements that are not counted.

    >>> group_deviations(torch.tensor([0.1, 0.1, 0.1]), torch.tensor([0, 0, 0]), torch.tensor([True, True, True]))
    tensor([0., 0., 0.])
    """
    count = int(groups.max()) + 1 if len(groups) else 0
    least = values.new_full((count,), torch.inf).scatter_reduce(0, groups, values.where(mask > 0, torch.inf), "amin")
    above_least = (values - least[groups]).where(mask > 0, 0.0)
    return (above_least - group_means(above_least, groups, mask)).where(mask > 0, 0.0)


def group_stds(values: Tensor, groups: Tensor, mask: Tensor) -> Tensor:
    """Returns the sample standard deviation of each element's group over the counted members: `[n]`; 0 for fewer than
    two.

    >>> group_stds(torch.tensor([1.0, 3.0, 7.0]), torch.tensor([0, 0, 1]), torch.tensor([True, True, True]))
    tensor([1.4142, 1.4142, 0.0000])
    """
    squares = _weighted(group_deviations(values, groups, mask).square(), mask)
    return (_totals(squares, groups)[groups] / (group_counts(groups, mask) - 1).clamp(min=1)).sqrt()


def _weighted(values: Tensor, mask: Tensor) -> Tensor:
    """Returns the values times their weights; elements that are not counted are 0 even if they are no numbers."""
    return values.where(mask > 0, 0.0) * mask.to(values.dtype)


def _totals(values: Tensor, groups: Tensor) -> Tensor:
    """Returns the sum of each group: `[groups]`."""
    count = int(groups.max()) + 1 if len(groups) else 0
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add_(0, groups, values)
