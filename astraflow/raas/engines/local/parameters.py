"""Putting a verified version into a model: prepared beside the one that serves, then swapped in."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Version
from astraflow.contract.weights import Manifest, TensorSpec
from astraflow.models.precision import Bits, bits_at, values_of
from astraflow.weights.adapters import adapted_weights, adapter_facts
from astraflow.weights.tensors import VerifiedWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTensor:
    """New values of one parameter, in its type and on its device. positions: int64 `[n]` of the flat elements that
    `values` belong to, ascending; None for all of them."""

    parameter: nn.Parameter
    values: Tensor
    positions: Tensor | None


def stage(
    weights: VerifiedWeights, parameters: dict[str, nn.Parameter], *, serving: Version | None
) -> list[StagedTensor]:
    """Everything a swap needs, made without touching the parameters: only what changed if `serving` is the base.

    Raises: InvalidInput when the version is of another model.
    """
    _check_layout(weights.manifest, parameters)
    changes = weights.changes if weights.base is not None and weights.base == serving else None
    staged = []
    for spec in weights.manifest.tensors:
        parameter = parameters[spec.name]
        bits = bits_at(weights.buffer, spec)
        positions = None
        if changes is not None:
            chosen = changes.get(spec.name, _NOTHING)
            if not len(chosen):
                continue
            if len(chosen) <= spec.elements * _patched_share(parameter):
                bits, positions = bits[chosen], torch.from_numpy(chosen.copy()).to(parameter.device)
        values = values_of(bits, spec.dtype, into=parameter.dtype).to(parameter.device)
        staged.append(StagedTensor(parameter=parameter, values=values, positions=positions))
    return staged


def stage_adapted(
    adapters: VerifiedWeights, base: VerifiedWeights, parameters: dict[str, nn.Parameter], *, is_base_served: bool
) -> list[StagedTensor]:
    """As `stage`, for low-rank adapters: `W + scale · B · A`, added up in float32 and rounded once to the parameter's
    type. is_base_served: whether all else is the base's already.

    Raises: InvalidInput when the base is of another model, or not the one they were trained on; CorruptData.
    """
    facts = adapter_facts(adapters.manifest)
    if facts is None or facts.base_root != base.manifest.root_hash:
        raise InvalidInput(
            f"version {adapters.manifest.version} of {adapters.manifest.policy} was not trained on version "
            f"{base.manifest.version} of {base.manifest.policy}"
        )
    changed = {one.weight.name: one for one in adapted_weights(adapters.manifest, base.manifest)}
    _check_layout(base.manifest, parameters)
    staged = []
    for spec in base.manifest.tensors:
        parameter, pair = parameters[spec.name], changed.get(spec.name)
        if pair is None and is_base_served:
            continue
        values = _moved(base, spec, parameter.device)
        if pair is not None:
            down, up = (_moved(adapters, one, parameter.device).view(one.shape) for one in (pair.down, pair.up))
            values = values.view(spec.shape).addmm_(up, down, alpha=facts.scale).view(-1)
        staged.append(StagedTensor(parameter=parameter, values=values.to(parameter.dtype), positions=None))
    return staged


def _moved(weights: VerifiedWeights, spec: TensorSpec, device: torch.device) -> Tensor:
    """One tensor in float32, flat."""
    return values_of(bits_at(weights.buffer, spec), spec.dtype, into=torch.float32).to(device)


@torch.inference_mode()
def swap(staged: list[StagedTensor], *, threads: int = 1) -> list[Tensor]:
    """Make the staged values those of the model: whole tensors change hands, patches are written to their places.

    Returns the tensors that were replaced: giving back gigabytes takes as long as a patch, so let go of them when
    nothing waits.
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
    """New bits for some places of a tensor in host memory: for writing, numpy is the fastest there is."""

    target: Bits
    positions: npt.NDArray[np.int64]
    bits: Bits

    def write(self) -> None:
        """Other threads run meanwhile."""
        self.target[self.positions] = self.bits


def _patches(parameter: nn.Parameter, positions: Tensor, values: Tensor) -> Iterator[_Patch]:
    """Of about equal size, for threads to share out."""
    unsigned = _UNSIGNED[parameter.element_size()]
    target, bits = parameter.data.view(-1).view(unsigned).numpy(), values.view(unsigned).numpy()
    places = positions.numpy()
    for first in range(0, len(places), _PATCH_ELEMENTS):
        chosen = slice(first, first + _PATCH_ELEMENTS)
        yield _Patch(target=target, positions=places[chosen], bits=bits[chosen])


_PATCH_ELEMENTS = 2**17
_UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}
_NOTHING = np.empty(0, dtype=np.int64)


def _patched_share(parameter: nn.Parameter) -> float:
    """Up to which share of changed elements a tensor is patched rather than replaced.

    In host memory a patch stops generation for longer the more changed, a replacement for a fraction of a millisecond,
    but takes a second of copying a gigabyte beside it, and memory (docs/weights.md has both). On an accelerator
    scattering is fast and memory is short.
    """
    return 1 / 32 if parameter.device.type == "cpu" else 1.0


def _check_layout(manifest: Manifest, parameters: dict[str, nn.Parameter]) -> None:
    published = {spec.name: spec for spec in manifest.tensors}
    for name in sorted(published.keys() ^ parameters.keys()):
        where = "is published but not in" if name in published else "is not published but in"
        raise InvalidInput(
            f"version {manifest.version} of {manifest.policy} is of another model: {name} {where} this one"
        )
    for name, parameter in parameters.items():
        if published[name].shape != tuple(parameter.shape):
            raise InvalidInput(_shape_message(manifest, published[name], tuple(parameter.shape)))


def _shape_message(manifest: Manifest, spec: TensorSpec, expected: tuple[int, ...]) -> str:
    return (
        f"version {manifest.version} of {manifest.policy} is of another model: {spec.name} has shape {spec.shape}, "
        f"this one's {expected}; give node and trainer the same model spec"
    )
