"""Weights of a model folder, read one parameter at a time, so that no process needs to hold the whole model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.models.base import ModelSource
from astraflow.models.causal import kept_buffers, named_weights
from astraflow.models.published import PublishedParts, published_parts
from astraflow.runtime.config.toml import read_json

_INDEX = "model.safetensors.index.json"
_FILE = "model.safetensors"
_FLOATS = ("F32", "BF16", "F16")
_INTEGERS = ("I64", "I32")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A model whose parameters may be on the meta device, where they need no memory; its buffers have their values."""

    model: PreTrainedModel
    read: Callable[[str], Tensor] | None
    """Returns the values of a parameter on the meta device, or of a kept buffer, on the host, by its `state_dict` name.
    They may be a mapped file, and must not be changed. None: no parameter is there."""

    @classmethod
    def open(cls, source: ModelSource, folder: Path) -> "StoredModel":
        """Opens a prepared folder without reading weights, if its files have the names of the model's checkpoints; else
        loads the whole model."""
        model = source.architecture().eval()
        parts = published_parts(model)
        buffers = kept_buffers(model)
        shapes = {name: tensor.shape for name, tensor in (*named_weights(model).items(), *buffers.items())}
        weights = _MappedWeights(folder, parts, shapes)
        if not weights.is_complete:
            return cls(model=source.load(folder), read=None)
        model.name_or_path = str(folder)
        for name, buffer in buffers.items():
            buffer.copy_(weights.read(name))
        for parameter in model.parameters():
            set_values(parameter, torch.empty_like(parameter, device="meta"))
        return cls(model=model, read=weights.read)

    def rounded_to(self, dtype: torch.dtype) -> "StoredModel":
        """Returns the model with weights that are rounded when they are read."""
        read = self.read
        return self if read is None else replace(self, read=lambda name: read(name).to(dtype))


def kept_tensors(folder: Path, model: PreTrainedModel) -> dict[str, Tensor]:
    """Returns the tensors of a model folder that its model does not have, mapped: such as layers that predict several
    tokens. Empty unless the folder has all others under the names of the model's checkpoints."""
    parts = published_parts(model)
    shapes = {name: tensor.shape for name, tensor in {**named_weights(model), **kept_buffers(model)}.items()}
    weights = _MappedWeights(folder, parts, shapes)
    if not weights.is_complete:
        return {}
    tied = revert_weight_conversion(model, dict.fromkeys(model.all_tied_weights_keys, torch.empty(0)))
    own = {part.name for published in parts.values() for part in published} | tied.keys()
    return {name: weights.tensor(name) for name in sorted(weights.names - own)}


def set_values(parameter: nn.Parameter, values: Tensor) -> None:
    """Replaces the values of a parameter, which may have another device and element type, wherever it is used."""
    torch.utils.swap_tensors(parameter, nn.Parameter(values, requires_grad=parameter.requires_grad))


def _indexed_files(index: Path) -> set[str]:
    """Returns the names of the files that an index lists. Raises: InvalidInput."""
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise InvalidInput(
            f"cannot read {str(index)!r}: it names no file for each weight; copy the whole model again",
            code="model.damaged_index",
        )
    return set(files.values())


class _MappedWeights:
    """Parameters and kept buffers in the safetensors files of a folder. Files are mapped: processes of a host share
    their pages."""

    def __init__(self, folder: Path, parts: PublishedParts, shapes: Mapping[str, torch.Size]) -> None:
        names = _indexed_files(folder / _INDEX) if (folder / _INDEX).is_file() else {_FILE}
        files: list[Any] = [safe_open(folder / name, framework="pt") for name in names if (folder / name).is_file()]
        self._files = {name: file for file in files for name in file.keys()}  # noqa: SIM118 (a file is no mapping)
        self._parts = parts
        self._shapes = shapes

    @property
    def is_complete(self) -> bool:
        """True when the files have every published part, in its shape and not quantized."""
        for part in chain.from_iterable(self._parts.values()):
            if part.name not in self._files:
                return False
            stored = self._files[part.name].get_slice(part.name)
            types = _INTEGERS if part.own_dtype is Dtype.INT32 else _FLOATS
            if tuple(stored.get_shape()) != part.shape or stored.get_dtype() not in types:
                return False
        return True

    def read(self, name: str) -> Tensor:
        """Returns a parameter or buffer, mapped if the file has it whole."""
        parts = self._parts[name]
        if len(parts) == 1:
            return self.tensor(parts[0].name).view(self._shapes[name])
        joined = torch.empty(self._shapes[name], dtype=self.tensor(parts[0].name).dtype)
        for part in parts:
            part.of(joined).copy_(self.tensor(part.name))
        return joined

    def tensor(self, name: str) -> Tensor:
        """Returns a tensor of the files, mapped."""
        values: Tensor = self._files[name].get_tensor(name)
        return values

    @property
    def names(self) -> set[str]:
        """Names of all tensors of the files."""
        return set(self._files)
