"""Weighted means and standard deviations, over a batch and by group.

A mask or weight is bool or float `[n]`: an element that is not counted has False or 0.
"""

import torch
from torch import Tensor


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
