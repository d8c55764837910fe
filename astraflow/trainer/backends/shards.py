"""Shards of tensors held by this rank, under `fully_shard` (FSDP2) and other placements in a device mesh."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # used by torch's own checkpoints

from astraflow.contract.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Rectangular part of a tensor: offset and size in each dimension."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        """Index of the box in the whole tensor."""
        return tuple(slice(offset, offset + size) for offset, size in zip(self.offsets, self.shape, strict=True))

    @property
    def elements(self) -> int:
        """Number of elements."""
        product = 1
        for size in self.shape:
            product *= size
        return product

    def is_inside(self, other: "Box") -> bool:
        """Returns whether `other` contains this box."""
        return len(self.shape) == len(other.shape) and all(
            other_first <= first and first + size <= other_first + other_size
            for first, size, other_first, other_size in zip(
                self.offsets, self.shape, other.offsets, other.shape, strict=True
            )
        )

    def intersection(self, other: "Box") -> "Box | None":
        """Returns the elements that are in both boxes; None when there are none."""
        offsets = tuple(map(max, self.offsets, other.offsets))
        ends = tuple(
            min(first + size, other_first + other_size)
            for first, size, other_first, other_size in zip(
                self.offsets, self.shape, other.offsets, other.shape, strict=True
            )
        )
        shape = tuple(end - offset for end, offset in zip(ends, offsets, strict=True))
        return Box(offsets=offsets, shape=shape) if min(shape, default=1) > 0 else None

    def overlaps(self, other: "Box") -> bool:
        """Returns whether any element is in both boxes."""
        return self.intersection(other) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalShard:
    """Part of a tensor that this rank writes."""

    local: Tensor
    box: Box


def local_shards(parameters: Mapping[str, Tensor], *, is_first: bool) -> dict[str, LocalShard]:
    """Returns the part of each tensor that this rank writes, if any: of ranks with the same shard the first in its mesh
    writes it; the first rank writes unsharded tensors. Shards may be uneven or empty, in any dimension.

    Raises: InvalidInput for a placement that is neither Shard nor Replicate.
    """
    held: dict[str, LocalShard] = {}
    for name, parameter in parameters.items():
        check_placements(name, parameter)
        shard = held_shard(parameter)
        if shard.box.elements and _is_writer(parameter, is_first=is_first):
            held[name] = shard
    return held


def held_shard(parameter: Tensor) -> LocalShard:
    """Returns the part of a tensor that this rank holds, whichever rank writes it. It may be empty."""
    if not isinstance(parameter, DTensor):
        shape = tuple(parameter.shape)
        return LocalShard(local=parameter.detach(), box=Box(offsets=(0,) * len(shape), shape=shape))
    shape, offsets = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return LocalShard(local=parameter.to_local().detach(), box=Box(offsets=tuple(offsets), shape=tuple(shape)))


def check_placements(name: str, parameter: Tensor) -> None:
    """Checks that every placement is Shard or Replicate. Raises: InvalidInput."""
    for placement in parameter.placements if isinstance(parameter, DTensor) else ():
        if type(placement) not in {Shard, Replicate}:
            raise InvalidInput(
                f"cannot publish {name!r}: its placement is {placement}; use only Shard and Replicate",
                code="weights.unsupported_placement",
            )


def _is_writer(parameter: Tensor, *, is_first: bool) -> bool:
    """Returns whether this rank is the first in the mesh that holds the shard."""
    if not isinstance(parameter, DTensor):
        return is_first
    coordinate = parameter.device_mesh.get_coordinate()
    return coordinate is not None and all(
        coordinate_index == 0
        for coordinate_index, placement in zip(coordinate, parameter.placements, strict=True)
        if isinstance(placement, Replicate)
    )
