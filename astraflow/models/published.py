"""Names and shapes under which a model's weights are published: those of its Hugging Face checkpoint.

transformers computes with some weights that a checkpoint has in parts: a layer's experts are one parameter
`[experts, 2 * size, hidden]`, and two matrices per expert in the checkpoint. Engines and other trainers read the
checkpoint's names, so these are published. A part is a contiguous run of its parameter's elements, so publishing and
loading need no other copy than for whole parameters.

Buffers that a checkpoint keeps, such as the biases of routers, are published beside the parameters, in their own
element type.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.initialization import no_init_weights

from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.models.causal import kept_buffers, named_weights
from astraflow.models.precision import ElementBits, bits_of, dtype_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPart:
    """Published tensor, which is a run of the elements of a parameter or buffer."""

    name: str
    shape: tuple[int, ...]
    offset: int = 0
    """Index of its first element among the parameter's flat elements."""
    own_dtype: Dtype | None = None
    """Element type in which a buffer is published; None for a parameter, which is published in the type of the run."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def of(self, values: Tensor) -> Tensor:
        """Returns the part of the parameter's values, sharing memory."""
        return values.view(-1)[self.offset : self.offset + self.elements].view(self.shape)

    def dtype(self, weights_dtype: Dtype) -> Dtype:
        """Returns the element type in which it is published, where parameters are published in `weights_dtype`."""
        return self.own_dtype or weights_dtype


PublishedParts: TypeAlias = Mapping[str, tuple[PublishedPart, ...]]
"""Parts of each parameter and kept buffer, by its `state_dict` name; they cover it in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedParameter:
    """Parameter or kept buffer of a model, and the tensors that it is published as."""

    parameter: Tensor
    parts: tuple[PublishedPart, ...]


def published_parts(model: PreTrainedModel) -> PublishedParts:
    """Returns the published parts of all parameters, in the model's own order, tied ones once, and of kept buffers.

    transformers converts tensors, not layouts, so it is given small ones: each parameter's rows by their numbers.
    Raises: InvalidInput when the checkpoint has a weight whose elements are not one run of a parameter.
    """
    buffers = kept_buffers(model)
    weights = {**named_weights(model), **buffers}
    first_rows = _first_rows(weights)
    numbers = {name: _row_numbers(weight.shape) + first_rows[name] for name, weight in weights.items()}
    with torch.device("meta"), no_init_weights():
        # A loaded model would be converted to the names of the files that it was loaded from, which may be outdated.
        empty_model = type(model)(model.config)
    parts: dict[str, list[PublishedPart]] = {name: [] for name in weights}
    names = list(weights)
    begins = list(first_rows.values())
    for name, rows in revert_weight_conversion(empty_model, numbers).items():
        parameter = names[bisect_right(begins, int(rows.flatten()[0])) - 1]
        own_dtype = _own_dtype(name, buffers[parameter]) if parameter in buffers else None
        part = _part(name, rows - first_rows[parameter], weights[parameter].shape)
        parts[parameter].append(replace(part, own_dtype=own_dtype))
    for name, weight in weights.items():
        parts[name].sort(key=lambda part: part.offset)
        if sum(part.elements for part in parts[name]) != weight.numel():
            raise _refusal(name)
    return {name: tuple(parameter_parts) for name, parameter_parts in parts.items()}


def published_parameters(model: PreTrainedModel) -> list[PublishedParameter]:
    """Returns the parameters and kept buffers of a model with their published parts. Raises: InvalidInput."""
    weights = {**named_weights(model), **kept_buffers(model)}
    return [PublishedParameter(parameter=weights[name], parts=parts) for name, parts in published_parts(model).items()]


def published_tensors(model: PreTrainedModel, dtype: Dtype) -> dict[str, tuple[Dtype, tuple[int, ...], ElementBits]]:
    """Returns element type, shape and bits of the tensors that a model is published as in `dtype`, by name.

    Raises: InvalidInput.
    """
    return {
        part.name: (part.dtype(dtype), part.shape, bits_of(part.of(published.parameter.data), part.dtype(dtype)))
        for published in published_parameters(model)
        for part in published.parts
    }


def matrix_shapes(parts: PublishedParts) -> dict[str, tuple[int, ...]]:
    """Returns the shape of the matrices that a parameter consists of, for those published as equal matrices."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (first, *others) in parts.items():
        if len(first.shape) == 2 and all(part.shape == first.shape for part in others):
            shapes[name] = first.shape
    return shapes


def _first_rows(weights: Mapping[str, Tensor]) -> dict[str, int]:
    """Returns the number of each parameter's first row, so that all rows of the model have different numbers."""
    first_rows, rows = {}, 0
    for name, weight in weights.items():
        first_rows[name] = rows
        rows += prod(weight.shape[:-1]) if weight.ndim > 1 else weight.numel()
    return first_rows


def _row_numbers(shape: torch.Size) -> Tensor:
    """Returns the numbers of a parameter's rows, `[..., 1]`; of a vector those of its elements, `[n]`."""
    leading = shape[:-1] if len(shape) > 1 else shape
    numbers = torch.arange(prod(leading)).view(leading)
    return numbers[..., None] if len(shape) > 1 else numbers


def _part(name: str, rows: Tensor, whole: torch.Size) -> PublishedPart:
    """Returns the part of a parameter of this shape that has these rows. Raises: InvalidInput."""
    width = whole[-1] if len(whole) > 1 else 1
    numbers = rows.flatten()
    is_run = bool((numbers == numbers[0] + torch.arange(len(numbers))).all())
    if not is_run or (len(whole) > 1 and rows.shape[-1] != 1):
        raise _refusal(name)
    shape = (*rows.shape[:-1], width) if len(whole) > 1 else tuple(rows.shape)
    return PublishedPart(name=name, shape=tuple(shape), offset=int(numbers[0]) * width)


def _own_dtype(name: str, buffer: Tensor) -> Dtype:
    """Returns the element type in which a buffer is published. Raises: InvalidInput."""
    dtype = torch.int32 if buffer.dtype == torch.int64 else buffer.dtype
    if dtype not in (torch.int32, torch.float32, torch.bfloat16, torch.float16):
        raise InvalidInput(
            f"cannot publish the buffer {name!r}: its elements are {buffer.dtype}; use a model whose buffers are "
            "floating-point numbers or integers",
            code="model.unsupported_weights",
        )
    return dtype_of(dtype)


def _refusal(name: str) -> InvalidInput:
    return InvalidInput(
        f"cannot publish the weight {name!r} under the names of its checkpoint: its elements are not contiguous in the "
        "model; use a model whose checkpoint has whole weights, or one matrix for each expert",
        code="model.unsupported_weights",
    )
