"""Groups of the ranks of a trainer: shards and replicas of the weights, slices of a pack, shares of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from astraflow.contract.errors import InvalidInput
from astraflow.trainer.engines.base import Layout
from astraflow.trainer.engines.sequence import SequenceGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMesh:
    """Groups of the ranks. Rank r has slice `r % sequence_ranks` of the packs of data rank `r // sequence_ranks`."""

    layout: Layout
    shards: DeviceMesh
    """Over all ranks: `[shards]`, or `[replicas, shards]`, where each replica has all weights."""
    sequence: SequenceGroup | None
    """None with one sequence rank."""
    data: dist.ProcessGroup | None
    """Ranks with the same slice of different packs; None with one data rank."""

    @classmethod
    def create(cls, device: torch.device, *, replicas: int = 1, sequence_ranks: int = 1) -> RankMesh:
        """Creates the groups, with the timeout of the default group; collective.

        Raises: InvalidInput for numbers that do not divide the ranks.
        """
        rank, ranks = dist.get_rank(), dist.get_world_size()
        for name, count in (("replicas", replicas), ("sequence_ranks", sequence_ranks)):
            if ranks % count:
                raise InvalidInput(
                    f"cannot divide {ranks} ranks: {name} is {count}; choose a divisor of `ranks`",
                    code="trainer.ranks_not_divisible",
                )
        timeout = _default_timeout(device)
        data_ranks = ranks // sequence_ranks
        sequences = [[data * sequence_ranks + part for part in range(sequence_ranks)] for data in range(data_ranks)]
        sequence = _own_group(sequences, timeout=timeout) if sequence_ranks > 1 else None
        slices = [list(members) for members in zip(*sequences, strict=True)]
        return cls(
            layout=Layout(
                rank=rank,
                ranks=ranks,
                data_rank=rank // sequence_ranks,
                data_ranks=data_ranks,
                sequence_ranks=sequence_ranks,
            ),
            shards=_shard_mesh(device, replicas=replicas, timeout=timeout),
            sequence=None
            if sequence is None
            else SequenceGroup(rank=rank % sequence_ranks, ranks=sequence_ranks, group=sequence),
            data=_own_group(slices, timeout=timeout) if data_ranks > 1 else None,
        )


class GroupRanks:
    """Collective operations over a process group. Implements `algorithms.tokens.Ranks`."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def sum(self, values: Tensor) -> Tensor:
        """Returns the elementwise sum over all ranks."""
        total = values.detach().clone()
        dist.all_reduce(total, group=self._group)
        return total

    def gather(self, values: Tensor) -> Tensor:
        """Returns the concatenation of one-dimensional tensors, in rank order."""
        own = torch.tensor([len(values)], dtype=torch.int64, device=values.device)
        sizes = [torch.empty_like(own) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(sizes, own, group=self._group)
        lengths = [int(size) for size in sizes]
        padded = values.new_zeros(max(lengths))
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(parts, padded, group=self._group)
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])


def _default_timeout(device: torch.device) -> timedelta:
    """Returns the longest wait of the default process group for another rank. torch gives other groups its own
    default, which is up to 30 minutes."""
    timeout: timedelta = _default_group()._get_backend(device).options._timeout
    return timeout


def _default_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None  # noqa: S101 (the ranks have joined before they build engines)
    return group


def _shard_mesh(device: torch.device, *, replicas: int, timeout: timedelta) -> DeviceMesh:
    """Returns `RankMesh.shards`. Collective over all ranks: `init_device_mesh` takes no timeout for its groups."""
    if replicas == 1:
        return DeviceMesh.from_group(_default_group(), device.type, mesh_dim_names=("shards",))
    ranks = torch.arange(dist.get_world_size()).reshape(replicas, -1)
    groups = [_own_group(members.tolist(), timeout=timeout) for members in (ranks.T, ranks)]
    return DeviceMesh.from_group(groups, device.type, mesh=ranks, mesh_dim_names=("replicas", "shards"))


def _own_group(groups: list[list[int]], *, timeout: timedelta) -> dist.ProcessGroup:
    """Creates a process group for each list of ranks; returns that of this rank. Collective over all ranks."""
    created = [dist.new_group(members, timeout=timeout) for members in groups]
    own: dist.ProcessGroup = next(
        group for group, members in zip(created, groups, strict=True) if dist.get_rank() in members
    )
    return own
