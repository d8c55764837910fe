"""Masked means and standard deviations, over a batch and by group."""

import torch
from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Returns the mean of the values where `mask` is True; 0 when there are none.

    >>> masked_mean(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([True, True, False]))
    tensor(2.)
    """
    return values.where(mask, 0.0).sum() / mask.sum().clamp(min=1)


def masked_std(values: Tensor, mask: Tensor) -> Tensor:
    """Returns the sample standard deviation of the values where `mask` is True; 0 for fewer than two.

    >>> masked_std(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([True, True, False]))
    tensor(1.4142)
    """
    squares = (values - masked_mean(values, mask)).square().where(mask, 0.0).sum()
    return (squares / (mask.sum() - 1).clamp(min=1)).sqrt()


def group_counts(groups: Tensor, mask: Tensor) -> Tensor:
    """Returns the number of counted members in each element's group: int64 `[n]` for groups `[n]`.

    >>> group_counts(torch.tensor([0, 0, 1]), torch.tensor([True, True, False]))
    tensor([2, 2, 0])
    """
    return _totals(mask.long(), groups)[groups]


def group_means(values: Tensor, groups: Tensor, mask: Tensor) -> Tensor:
    """Returns the mean of each element's group over the counted members: `[n]`.

    >>> group_means(torch.tensor([1.0, 3.0, 7.0]), torch.tensor([0, 0, 1]), torch.tensor([True, True, True]))
    tensor([2., 2., 7.])
    """
    return _totals(values.where(mask, 0.0), groups)[groups] / group_counts(groups, mask).clamp(min=1)


def group_stds(values: Tensor, groups: Tensor, mask: Tensor) -> Tensor:
    """Returns the sample standard deviation of each element's group over the counted members: `[n]`; 0 for fewer than
    two.

    >>> group_stds(torch.tensor([1.0, 3.0, 7.0]), torch.tensor([0, 0, 1]), torch.tensor([True, True, True]))
    tensor([1.4142, 1.4142, 0.0000])
    """
    squares = (values - group_means(values, groups, mask)).square().where(mask, 0.0)
    return (_totals(squares, groups)[groups] / (group_counts(groups, mask) - 1).clamp(min=1)).sqrt()


def _totals(values: Tensor, groups: Tensor) -> Tensor:
    """Returns the sum of each group: `[groups]`."""
    count = int(groups.max()) + 1 if len(groups) else 0
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add_(0, groups, values)
