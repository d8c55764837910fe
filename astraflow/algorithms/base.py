"""The port of advantages: how good each trajectory of a batch was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from astraflow.runtime.plugins import Registry

if TYPE_CHECKING:
    from torch import Tensor


class Advantage(Protocol):
    """Turns rewards into advantages, or advantages into better ones: they compose in the order they are listed.

    Built by `advantages.build(spec)`.
    """

    def __call__(self, values: Tensor, groups: Tensor, is_counted: Tensor) -> Tensor:
        """values: float32 `[trajectories]`, rewards at first; groups: int64 `[trajectories]`, numbered from 0.

        is_counted: bool `[trajectories]`; the others are no part of any mean or spread and get 0. Members that are
        missing altogether are just not there: groups may differ in size.
        """


advantages: Registry[Advantage] = Registry(
    "advantage",
    built_in={
        "batch_whitened": "astraflow.algorithms.advantages",
        "group_centred": "astraflow.algorithms.advantages",
        "group_relative": "astraflow.algorithms.advantages",
        "leave_one_out": "astraflow.algorithms.advantages",
    },
    heavy=("batch_whitened", "group_centred", "group_relative", "leave_one_out"),
)
