"""How good each trajectory was, compared with its group or its batch."""

from pydantic import Field
from torch import Tensor

from astraflow.algorithms.base import advantages
from astraflow.algorithms.masks import group_counts, group_means, group_spreads, masked_mean, masked_spread
from astraflow.runtime.config import Config


class SpreadOptions(Config):
    """For advantages in units of a spread."""

    epsilon: float = Field(default=1e-4, gt=0)
    """Added to the spread, so that near-equal rewards do not become huge advantages."""


class NoOptions(Config):
    """There is nothing to choose."""


def group_relative(values: Tensor, groups: Tensor, is_counted: Tensor, *, epsilon: float = 1e-4) -> Tensor:
    """Against the group's mean, in units of the group's spread. A group of equal rewards gets zeros: no signal.

    values, groups, is_counted: `[trajectories]`; returns `[trajectories]`.
    Source: DeepSeekMath, arXiv:2402.03300, section 4.1.2.

    >>> import torch
    >>> rewards, groups = torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1])
    >>> group_relative(rewards, groups, torch.tensor([True] * 4))
    tensor([ 0.7070, -0.7070,  0.0000,  0.0000])
    """
    spreads = group_spreads(values, groups, is_counted)
    return group_centred(values, groups, is_counted) / (spreads + epsilon)


def group_centred(values: Tensor, groups: Tensor, is_counted: Tensor) -> Tensor:
    """Against the group's mean, in units of the reward: hard and easy prompts are not weighted up.

    Source: Dr. GRPO, arXiv:2503.20783.
    """
    return (values - group_means(values, groups, is_counted)).where(is_counted, 0.0)


def leave_one_out(values: Tensor, groups: Tensor, is_counted: Tensor) -> Tensor:
    """Against the mean of the others in the group: unbiased, because the baseline does not depend on the sample.

    A member without others gets 0. Source: RLOO, arXiv:2402.14740.
    """
    counts = group_counts(groups, is_counted)
    return group_centred(values, groups, is_counted) * counts / (counts - 1).clamp(min=1)


def batch_whitened(values: Tensor, is_counted: Tensor, *, epsilon: float = 1e-4) -> Tensor:
    """Against the mean of the batch, in units of the batch's spread; every trajectory has the same say.

    Source: REINFORCE++, arXiv:2501.03262.
    """
    whitened = (values - masked_mean(values, is_counted)) / (masked_spread(values, is_counted) + epsilon)
    return whitened.where(is_counted, 0.0)


@advantages.register("group_relative", options=SpreadOptions)
class GroupRelative:
    """See `group_relative`."""

    def __init__(self, options: SpreadOptions) -> None:
        self._epsilon = options.epsilon

    def __call__(self, values: Tensor, groups: Tensor, is_counted: Tensor) -> Tensor:
        """`[trajectories]`."""
        return group_relative(values, groups, is_counted, epsilon=self._epsilon)


@advantages.register("group_centred", options=NoOptions)
class GroupCentred:
    """See `group_centred`."""

    def __init__(self, _options: NoOptions) -> None:
        pass

    def __call__(self, values: Tensor, groups: Tensor, is_counted: Tensor) -> Tensor:
        """`[trajectories]`."""
        return group_centred(values, groups, is_counted)


@advantages.register("leave_one_out", options=NoOptions)
class LeaveOneOut:
    """See `leave_one_out`."""

    def __init__(self, _options: NoOptions) -> None:
        pass

    def __call__(self, values: Tensor, groups: Tensor, is_counted: Tensor) -> Tensor:
        """`[trajectories]`."""
        return leave_one_out(values, groups, is_counted)


@advantages.register("batch_whitened", options=SpreadOptions)
class BatchWhitened:
    """See `batch_whitened`."""

    def __init__(self, options: SpreadOptions) -> None:
        self._epsilon = options.epsilon

    def __call__(self, values: Tensor, _groups: Tensor, is_counted: Tensor) -> Tensor:
        """`[trajectories]`."""
        return batch_whitened(values, is_counted, epsilon=self._epsilon)
