"""State of a model on disk by shards: each rank writes its parts into a file of its own, one index has the whole.

The index, JSON, lists for each tensor its type, its shape, and its parts: file, offsets and shape. Any number of
ranks reads them, with any shards, and only the bytes that each needs. torch's own index is a pickle.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.trainer.backends.shards import Box, LocalShard, held_shard
from astraflow.trainer.backends.state.files import begins_optimizer, read_numbers
from astraflow.trainer.engines.values import is_weight

INDEX = "tensors.index.json"

_FORMAT = 1


def shard_file(rank: int) -> str:
    """Returns the name of the file with the parts of a rank."""
    return f"tensors-{rank:05d}.safetensors"


def shard_index(tensors: Mapping[str, Tensor], shards: Mapping[str, LocalShard], *, rank: int) -> dict[str, Any]:
    """Returns the index of the parts that a rank writes, as JSON values. shards: its `local_shards` of the tensors."""
    return {
        name: {
            "dtype": str(shard.local.dtype),
            "shape": list(tensors[name].shape),
            "parts": [
                {"file": shard_file(rank), "offsets": list(shard.box.offsets), "shape": list(shard.box.shape)},
            ],
        }
        for name, shard in shards.items()
    }


def joined_index(indices: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the content of the index file from the indices of all ranks."""
    tensors: dict[str, Any] = {}
    for index in indices:
        for name, entry in index.items():
            parts = tensors[name]["parts"] if name in tensors else []
            tensors[name] = {**entry, "parts": [*parts, *entry["parts"]]}
    return {"format": _FORMAT, "tensors": tensors}


def read_shards(folder: Path, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns on the host what this rank holds of each tensor: of a DTensor its shard. Of a state from which the
    optimizer begins anew, returns the weights only.

    Raises: InvalidInput unless names, types and shapes equal those in `like`; CorruptData when a part is missing. Both
    name the file.
    """
    index = _read_index(folder)
    if begins_optimizer(folder):
        index = {name: entry for name, entry in index.items() if is_weight(name)}
        like = {name: tensor for name, tensor in like.items() if is_weight(name)}
    for name in sorted(index.keys() ^ like.keys()):
        raise _mismatch(folder / INDEX, f"tensor {name!r} is either not in the file or not in this model")
    reader = _Reader(folder)
    return {name: reader.read(name, index[name], tensor) for name, tensor in like.items()}


class WholeTensors:
    """Float32 tensors of a state, whole and on the host, whatever ranks wrote their parts."""

    def __init__(self, folder: Path) -> None:
        """Raises: CorruptData, naming the file. A folder without index has no tensors."""
        self._index = _read_index(folder) if (folder / INDEX).exists() else {}
        self._reader = _Reader(folder)

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __contains__(self, name: str) -> bool:
        return name in self._index

    def shape(self, name: str) -> tuple[int, ...]:
        return self._index[name].shape

    def read(self, name: str) -> Tensor:
        """Returns a tensor. Raises: CorruptData, naming the file; InvalidInput for another element type."""
        entry = self._index[name]
        return self._reader.read(name, entry, torch.empty(entry.shape, dtype=torch.float32, device="meta"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    file: str
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """Tensor in the index."""

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[_Part, ...]


class _Reader:
    """Reads boxes of tensors. Each file is opened once and mapped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}

    def read(self, name: str, entry: _Entry, like: Tensor) -> Tensor:
        """Returns the elements of the tensor that this rank holds."""
        if entry.dtype != str(like.dtype) or entry.shape != tuple(like.shape):
            raise _mismatch(
                self._folder / INDEX,
                f"tensor {name!r} is {entry.dtype} {entry.shape}, the model has {like.dtype} {tuple(like.shape)}",
            )
        held = held_shard(like).box
        target = torch.empty(held.shape, dtype=like.dtype)
        elements = 0
        for part in entry.parts:
            if (common := part.box.intersection(held)) is None:
                continue
            target[_within(common, held).slices] = self._read_box(name, part, _within(common, part.box))
            elements += common.elements
        if elements != held.elements:
            raise CorruptData(
                f"cannot restore {str(self._folder / INDEX)!r}: {held.elements - elements} elements of tensor {name!r} "
                "are missing; use another checkpoint",
                code="checkpoint.unreadable_state",
            )
        return target

    def _read_box(self, name: str, part: _Part, box: Box) -> Tensor:
        path = self._folder / part.file
        try:
            if part.file not in self._files:
                self._files[part.file] = safe_open(path, framework="pt")
            file = self._files[part.file]
            values: Tensor = file.get_slice(name)[box.slices] if box.shape else file.get_tensor(name)
            return values
        except (OSError, SafetensorError) as problem:
            raise CorruptData(
                f"cannot read {str(path)!r}: {problem}; use another checkpoint", code="checkpoint.unreadable_state"
            ) from problem


def _read_index(folder: Path) -> dict[str, _Entry]:
    path = folder / INDEX
    content = read_numbers(path)
    try:
        if content["format"] != _FORMAT:
            raise ValueError(f"format is {content['format']!r}, this release reads {_FORMAT}")
        return {
            name: _Entry(
                dtype=entry["dtype"],
                shape=tuple(entry["shape"]),
                parts=tuple(
                    _Part(
                        file=Path(part["file"]).name,
                        box=Box(offsets=tuple(part["offsets"]), shape=tuple(part["shape"])),
                    )
                    for part in entry["parts"]
                ),
            )
            for name, entry in content["tensors"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise CorruptData(
            f"cannot restore {str(path)!r}: {problem!r}; use another checkpoint", code="checkpoint.unreadable_state"
        ) from problem


def _within(box: Box, outer: Box) -> Box:
    """Returns a box relative to another that contains it."""
    return Box(
        offsets=tuple(offset - begin for offset, begin in zip(box.offsets, outer.offsets, strict=True)), shape=box.shape
    )


def _mismatch(path: Path, cause: str) -> InvalidInput:
    return InvalidInput(
        f"cannot restore {str(path)!r}: {cause}; the checkpoint is intact, but the model, the optimizer or its options "
        "(optimizer, moments_dtype, lora, critic) were others: restore them in the recipe, or start a new run",
        code="checkpoint.shape_mismatch",
    )
