"""Means and spreads over what counts: masked, and by group."""

import torch
from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the places where `mask` is True; 0 when there are none.

    >>> masked_mean(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([True, True, False]))
    tensor(2.)
    """
    return values.where(mask, 0.0).sum() / mask.sum().clamp(min=1)


def masked_spread(values: Tensor, mask: Tensor) -> Tensor:
    """Sample standard deviation over the places where `mask` is True; 0 for fewer than two.

    >>> masked_spread(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([True, True, False]))
    tensor(1.4142)
    """
    squares = (values - masked_mean(values, mask)).square().where(mask, 0.0).sum()
    return (squares / (mask.sum() - 1).clamp(min=1)).sqrt()


def group_counts(groups: Tensor, mask: Tensor) -> Tensor:
    """How many members of each one's group count: int64 `[n]` for groups `[n]`.

    >>> group_counts(torch.tensor([0, 0, 1]), torch.tensor([True, True, False]))
    tensor([2, 2, 0])
    """
    return _totals(mask.long(), groups)[groups]


def group_means(values: Tensor, groups: Tensor, mask: Tensor) -> Tensor:
    """The mean of each one's group, over the members that count: `[n]`.

    >>> group_means(torch.tensor([1.0, 3.0, 7.0]), torch.tensor([0, 0, 1]), torch.tensor([True, True, True]))
    tensor([2., 2., 7.])
    """
    return _totals(values.where(mask, 0.0), groups)[groups] / group_counts(groups, mask).clamp(min=1)


def group_spreads(values: Tensor, groups: Tensor, mask: Tensor) -> Tensor:
    """The sample standard deviation of each one's group, over the members that count: `[n]`; 0 for fewer than two.

    >>> group_spreads(torch.tensor([1.0, 3.0, 7.0]), torch.tensor([0, 0, 1]), torch.tensor([True, True, True]))
    tensor([1.4142, 1.4142, 0.0000])
    """
    squares = (values - group_means(values, groups, mask)).square().where(mask, 0.0)
    return (_totals(squares, groups)[groups] / (group_counts(groups, mask) - 1).clamp(min=1)).sqrt()


def _totals(values: Tensor, groups: Tensor) -> Tensor:
    """The sum of each group: `[groups]`."""
    count = int(groups.max()) + 1 if len(groups) else 0
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add_(0, groups, values)
