"""Which part of each tensor this rank holds, under `fully_shard` (FSDP2) and what else places tensors in a mesh."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # what torch's own checkpoints use

from astraflow.contract.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A part of a whole tensor: where it begins in each dimension, and how far it reaches."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        """It, in the whole tensor."""
        return tuple(slice(offset, offset + size) for offset, size in zip(self.offsets, self.shape, strict=True))

    @property
    def elements(self) -> int:
        """Number of elements."""
        product = 1
        for size in self.shape:
            product *= size
        return product

    def is_inside(self, other: "Box") -> bool:
        """Whether the other has all of it."""
        return len(self.shape) == len(other.shape) and all(
            other_first <= first and first + size <= other_first + other_size
            for first, size, other_first, other_size in zip(
                self.offsets, self.shape, other.offsets, other.shape, strict=True
            )
        )

    def overlaps(self, other: "Box") -> bool:
        """Whether any element is in both."""
        return bool(self.elements and other.elements) and all(
            first < other_first + other_size and other_first < first + size
            for first, size, other_first, other_size in zip(
                self.offsets, self.shape, other.offsets, other.shape, strict=True
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldShard:
    """What this rank writes of a tensor."""

    local: Tensor
    box: Box


def held_shards(parameters: Mapping[str, Tensor], *, is_first: bool) -> dict[str, HeldShard]:
    """Of each tensor what this rank writes, where that is anything: of ranks that hold the same shard the first in its
    mesh does, and whole tensors are the first rank's. Uneven and empty shards, of any dimension.

    Raises: InvalidInput for a placement that is neither Shard nor Replicate.
    """
    held: dict[str, HeldShard] = {}
    for name, parameter in parameters.items():
        check_placements(name, parameter)
        shard = _held(parameter)
        if shard.box.elements and _is_writer(parameter, is_first=is_first):
            held[name] = shard
    return held


def check_placements(name: str, parameter: Tensor) -> None:
    """Raises: InvalidInput for a placement that is neither Shard nor Replicate."""
    for placement in parameter.placements if isinstance(parameter, DTensor) else ():
        if type(placement) not in {Shard, Replicate}:
            raise InvalidInput(f"{name} is placed as {placement}: only Shard and Replicate can be published")


def _held(parameter: Tensor) -> HeldShard:
    if not isinstance(parameter, DTensor):
        shape = tuple(parameter.shape)
        return HeldShard(local=parameter.detach(), box=Box(offsets=(0,) * len(shape), shape=shape))
    shape, offsets = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return HeldShard(local=parameter.to_local().detach(), box=Box(offsets=tuple(offsets), shape=tuple(shape)))


def _is_writer(parameter: Tensor, *, is_first: bool) -> bool:
    """Of ranks that hold the same shard, the first in its mesh."""
    if not isinstance(parameter, DTensor):
        return is_first
    coordinate = parameter.device_mesh.get_coordinate()
    return coordinate is not None and all(
        place == 0
        for place, placement in zip(coordinate, parameter.placements, strict=True)
        if isinstance(placement, Replicate)
    )
