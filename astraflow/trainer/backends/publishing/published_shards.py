"""Shards of the tensors that are published, which may be parts of a model's parameters."""

from collections.abc import Mapping
from math import prod

import numpy as np
from torch import Tensor

from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.models.published import PublishedPart, PublishedParts
from astraflow.trainer.backends.shards import Box, LocalShard, check_placements, local_shards
from astraflow.weights.tensors import TensorShapes


class PublishedShards:
    """Published tensors of a model whose parameters are whole, or sharded over ranks; no rank gathers a parameter."""

    def __init__(self, parameters: Mapping[str, Tensor], parts: PublishedParts, dtype: Dtype) -> None:
        """parameters: by `state_dict` name, in the order of publishing, with kept buffers. parts: how they are
        published; a parameter without is published whole, under its name. dtype: published type of parameters.

        Raises: InvalidInput for a placement that is neither Shard nor Replicate.
        """
        for name, parameter in parameters.items():
            check_placements(name, parameter)
        self._parameters = dict(parameters)
        self._parts = {
            name: parts.get(name, (PublishedPart(name=name, shape=tuple(parameter.shape)),))
            for name, parameter in parameters.items()
        }
        self.tensor_shapes: TensorShapes = {
            part.name: (part.dtype(dtype), part.shape) for published in self._parts.values() for part in published
        }
        """Element types and shapes of the whole published tensors, of which this rank may hold a part."""

    @property
    def dtypes(self) -> dict[str, Dtype]:
        """Element types of the published tensors, by name."""
        return {name: dtype for name, (dtype, _) in self.tensor_shapes.items()}

    def local(self, *, is_first: bool) -> dict[str, LocalShard]:
        """Returns the part of each published tensor that this rank writes, if any, as `local_shards`."""
        shards = local_shards(self._parameters, is_first=is_first)
        written = {}
        for name, shard in shards.items():
            for part in self._parts[name]:
                part_shard = _part_shard(part, shard, tuple(self._parameters[name].shape))
                if part_shard is not None:
                    written[part.name] = part_shard
        return written


def _part_shard(part: PublishedPart, shard: LocalShard, whole: tuple[int, ...]) -> LocalShard | None:
    """Returns what a shard of a parameter of shape `whole` holds of a part; None when it holds nothing."""
    if part.shape == whole:
        return shard
    box = _box(part, whole)
    common = box.intersection(shard.box)
    if common is None:
        return None
    within = Box(
        offsets=tuple(offset - begin for offset, begin in zip(common.offsets, shard.box.offsets, strict=True)),
        shape=common.shape,
    )
    offsets = tuple(offset - begin for offset, begin in zip(common.offsets, box.offsets, strict=True))
    leading = len(whole) - len(part.shape)  # the part has one index of each leading dimension
    local = shard.local[within.slices].reshape(common.shape[leading:])
    return LocalShard(local=local, box=Box(offsets=offsets[leading:], shape=common.shape[leading:]))


def _box(part: PublishedPart, whole: tuple[int, ...]) -> Box:
    """Returns the elements of a part as a box in its parameter. Raises: InvalidInput when the part has no elements."""
    leading = len(whole) - len(part.shape)
    shape = (1,) * leading + part.shape if leading >= 0 else part.shape
    offsets = tuple(int(index) for index in np.unravel_index(part.offset, whole))
    is_box = leading >= 0 and shape[leading + 1 :] == whole[leading + 1 :]
    if not is_box or any(offset + size > end for offset, size, end in zip(offsets, shape, whole, strict=True)):
        raise InvalidInput(
            f"cannot publish {part.name!r}: its {prod(part.shape)} elements are no rectangular part of a parameter of "
            f"shape {whole}; use a model whose checkpoint has whole weights, or one matrix for each expert",
            code="model.unsupported_weights",
        )
    return Box(offsets=offsets, shape=shape)
