"""Loads a verified version into a model: stages the values while the previous version serves, then swaps them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Version
from astraflow.contract.weights import Manifest, TensorSpec
from astraflow.models.precision import ElementBits, bits_at, values_of
from astraflow.models.published import PublishedParameter
from astraflow.raas.engines.merged_adapters import add_adapter, binding_to_base, float32_values
from astraflow.weights.adapters import AdaptedWeight, AdapterBinding, adapted_weights
from astraflow.weights.tensors import VerifiedWeights

Int64Array: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTensor:
    """New values of one parameter or buffer, in its type and on its device. positions: int64 `[n]`, ascending indices
    of the flat elements that `values` replaces; None for all elements."""

    parameter: Tensor
    values: Tensor
    positions: Tensor | None


def stage(
    weights: VerifiedWeights, parameters: Sequence[PublishedParameter], *, serving: Version | None
) -> list[StagedTensor]:
    """Prepares a swap without changing the parameters; stages only changed elements if `serving` is the base.

    Raises: InvalidInput when the version belongs to another model.
    """
    specs = _checked_specs(weights.manifest, parameters)
    changes = weights.changes if weights.base is not None and weights.base == serving else None
    staged = []
    for published in parameters:
        chosen = None if changes is None else [changes.get(part.name, _NO_POSITIONS) for part in published.parts]
        if chosen is not None and not any(map(len, chosen)):
            continue
        if chosen is not None and sum(map(len, chosen)) > published.parameter.numel() * _patched_share(
            published.parameter
        ):
            chosen = None
        bits = [(specs[part.name], bits_at(weights.buffer, specs[part.name])) for part in published.parts]
        staged.append(_staged(published, bits, chosen))
    return staged


class UnmergedAdapters:
    """Adds `scale · B (A x)` to the outputs of linear layers, in the type of the model and in the order of peft.

    A sum with weights of 16 bits would lose most of a small adapter.
    """

    def __init__(self, model: nn.Module) -> None:
        uses = Counter(id(weight) for module in model.modules() for weight in module.parameters(recurse=False))
        linear = (module for module in model.modules() if isinstance(module, nn.Linear))
        self._layers = {id(layer.weight): layer for layer in linear if uses[id(layer.weight)] == 1}
        self._hooks: list[RemovableHandle] = []

    def stage(
        self, adapters: VerifiedWeights, base: VerifiedWeights, parameters: Sequence[PublishedParameter]
    ) -> Mapping[nn.Linear, "LayerAdapter"]:
        """Returns the adapter of each layer; empty when one changes a weight that no linear layer has for itself.

        Raises: InvalidInput when the adapters do not fit their base, or have another one; CorruptData.
        """
        scale = binding_to_base(adapters, base).scale
        owners = {published.parts[0].name: published.parameter for published in parameters if len(published.parts) == 1}
        staged: dict[nn.Linear, LayerAdapter] = {}
        for pair in adapted_weights(adapters.manifest, base.manifest):
            weight = owners.get(pair.weight.name)
            layer = None if weight is None else self._layers.get(id(weight))
            if weight is None or layer is None:
                return {}
            down, up = (
                float32_values(adapters, factor, weight.device).view(factor.shape).to(weight.dtype)
                for factor in (pair.down, pair.up)
            )
            staged[layer] = LayerAdapter(down=down, up=up, scale=scale)
        return staged

    def swap(self, staged: Mapping[nn.Linear, "LayerAdapter"]) -> None:
        """Replaces all adapters; between two steps."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = [layer.register_forward_hook(adapter.added) for layer, adapter in staged.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAdapter:
    """Adapter of one linear layer."""

    down: Tensor
    up: Tensor
    scale: float

    def added(self, _layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        """Returns the layer's output with the adapter's product."""
        return output + F.linear(F.linear(inputs[0], self.down), self.up) * self.scale


def stage_adapted(
    adapters: VerifiedWeights,
    base: VerifiedWeights,
    parameters: Sequence[PublishedParameter],
    *,
    is_base_served: bool,
) -> list[StagedTensor]:
    """Prepares a swap for low-rank adapters: `W + scale · B · A`, summed in float32 and rounded once to the parameter's
    type. is_base_served: True if the parameters without adapters already have the values of the base.

    Raises: InvalidInput when the base belongs to another model or the adapters to another base; CorruptData.
    """
    binding = binding_to_base(adapters, base)
    adapted = {pair.weight.name: pair for pair in adapted_weights(adapters.manifest, base.manifest)}
    specs = _checked_specs(base.manifest, parameters)
    staged = []
    for published in parameters:
        if is_base_served and not any(part.name in adapted for part in published.parts):
            continue
        values = [
            _adapted_values(adapters, base, specs[part.name], adapted.get(part.name), binding, published.parameter)
            for part in published.parts
        ]
        staged.append(StagedTensor(parameter=published.parameter, values=_joined(values), positions=None))
    return staged


@torch.inference_mode()
def swap(staged: list[StagedTensor], *, threads: int = 1) -> list[Tensor]:
    """Applies the staged values: replaces whole tensors and writes patches to their positions.

    Returns the replaced tensors: freeing gigabytes takes as long as a patch, so the caller frees them when no request
    waits.
    """
    replaced: list[Tensor] = []
    patches: list[_Patch] = []
    for tensor in staged:
        if tensor.positions is None:
            replaced.append(tensor.parameter.data)
            tensor.parameter.data = tensor.values.view(tensor.parameter.shape)
        elif tensor.values.device.type == "cpu":
            patches += _patches(tensor.parameter, tensor.positions, tensor.values)
        else:
            tensor.parameter.data.view(-1).index_copy_(0, tensor.positions, tensor.values)
    if threads == 1:
        for patch in patches:
            patch.write()
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(_Patch.write, patches))
    return replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class _Patch:
    """New bits for some positions of a tensor in host memory; numpy writes them fastest."""

    target: ElementBits
    positions: Int64Array
    bits: ElementBits

    def write(self) -> None:
        """Writes the bits; other threads run meanwhile."""
        self.target[self.positions] = self.bits


def _patches(parameter: Tensor, positions: Tensor, values: Tensor) -> Iterator[_Patch]:
    """Splits a patch into parts of about equal size, for several threads."""
    unsigned = _UNSIGNED[parameter.element_size()]
    target, bits = parameter.data.view(-1).view(unsigned).numpy(), values.view(unsigned).numpy()
    indices = positions.numpy()
    for first in range(0, len(indices), _PATCH_ELEMENTS):
        part = slice(first, first + _PATCH_ELEMENTS)
        yield _Patch(target=target, positions=indices[part], bits=bits[part])


_PATCH_ELEMENTS = 2**17
_UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}
_NO_POSITIONS = np.empty(0, dtype=np.int64)


def _patched_share(parameter: Tensor) -> float:
    """Returns the share of changed elements up to which a tensor is patched rather than replaced.

    In host memory a patch stops generation for longer the more changed, a replacement for a fraction of a millisecond,
    but takes a second of copying a gigabyte beside it, and memory (docs/benchmarks/weights.md has both). On an
    accelerator scattering is fast and memory is short.
    """
    return 1 / 32 if parameter.device.type == "cpu" else 1.0


def _staged(
    published: PublishedParameter, bits: Sequence[tuple[TensorSpec, ElementBits]], chosen: Sequence[Int64Array] | None
) -> StagedTensor:
    """Returns new values of a parameter from those of its parts. chosen: changed positions in each part; None: all."""
    parameter = published.parameter
    values = [
        values_of(part if chosen is None else part[chosen[index]], spec.dtype, into=parameter.dtype)
        for index, (spec, part) in enumerate(bits)
    ]
    positions = None
    if chosen is not None:
        shifted = [indices + part.offset for part, indices in zip(published.parts, chosen, strict=True)]
        positions = torch.from_numpy(np.concatenate(shifted)).to(parameter.device)
    return StagedTensor(parameter=parameter, values=_joined(values).to(parameter.device), positions=positions)


def _adapted_values(
    adapters: VerifiedWeights,
    base: VerifiedWeights,
    spec: TensorSpec,
    pair: AdaptedWeight | None,
    binding: AdapterBinding,
    parameter: Tensor,
) -> Tensor:
    """Returns the values of one tensor of the base with its adapter, if any, in the type of its parameter."""
    values = float32_values(base, spec, parameter.device)
    if pair is not None:
        values = add_adapter(values, adapters, pair, binding)
    return values.to(parameter.dtype)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _checked_specs(manifest: Manifest, parameters: Sequence[PublishedParameter]) -> dict[str, TensorSpec]:
    """Returns the tensors of a version by name. Raises: InvalidInput when they are not those of the model."""
    published = {spec.name: spec for spec in manifest.tensors}
    expected = {part.name: part.shape for parameter in parameters for part in parameter.parts}
    for name in sorted(published.keys() ^ expected.keys()):
        where = "published but absent from the model" if name in published else "part of the model but not published"
        raise InvalidInput(
            f"cannot load {manifest.policy!r} version {manifest.version}: the tensor {name!r} is {where}; give node "
            "and trainer the same model spec",
            code="weights.model_mismatch",
        )
    for name, shape in expected.items():
        if published[name].shape != shape:
            raise InvalidInput(_shape_message(manifest, published[name], shape), code="weights.model_mismatch")
    return published


def _shape_message(manifest: Manifest, spec: TensorSpec, expected: tuple[int, ...]) -> str:
    return (
        f"cannot load {manifest.policy!r} version {manifest.version}: the tensor {spec.name!r} has shape {spec.shape}, "
        f"in the model {expected}; give node and trainer the same model spec"
    )
