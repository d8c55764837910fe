"""Sum of base weights and low-rank adapters: `W + scale · B · A` in float32, rounded once."""

from typing import TYPE_CHECKING

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Version
from astraflow.contract.weights import Dtype, TensorSpec
from astraflow.weights.adapters import MAX_LOST, AdaptedWeight, AdapterBinding, adapted_weights, read_adapter_binding
from astraflow.weights.tensors import (
    Buffer,
    VerifiedWeights,
    hash_into_manifest,
    lay_out,
    tensor_bits,
)
from astraflow.weights.transfer.transfer_application import Changes

if TYPE_CHECKING:
    import torch

_MAX_PATCHED_SHARE = 1 / 8
"""Largest share of changed elements that is written as a patch; above, whole tensors are cheaper."""


def binding_to_base(adapters: VerifiedWeights, base: VerifiedWeights) -> AdapterBinding:
    """Returns the binding of adapters to their base. Raises: InvalidInput for another base; CorruptData."""
    binding = read_adapter_binding(adapters.manifest)
    if binding is None or binding.base_root != base.manifest.root_hash:
        raise InvalidInput(
            f"cannot load adapters of {adapters.manifest.policy!r} version {adapters.manifest.version}: they were not "
            f"trained on {base.manifest.policy!r} version {base.manifest.version}; attach the base they name",
            code="weights.adapter_mismatch",
        )
    return binding


def float32_values(weights: VerifiedWeights, spec: TensorSpec, device: "torch.device | None" = None) -> "torch.Tensor":
    """Returns one tensor in float32, flat, in memory of its own; on the CPU by default."""
    import torch

    from astraflow.models.precision import bits_at, values_of

    values = values_of(bits_at(weights.buffer, spec), spec.dtype, into=torch.float32)
    return values if device is None else values.to(device)


def add_adapter(
    values: "torch.Tensor", adapters: VerifiedWeights, pair: AdaptedWeight, binding: AdapterBinding
) -> "torch.Tensor":
    """Returns the values of one weight, float32, flat, with its adapter added in place."""
    down, up = (float32_values(adapters, factor, values.device).view(factor.shape) for factor in (pair.down, pair.up))
    return values.view(pair.weight.shape).addmm_(up, down, alpha=binding.scale).view(-1)


class RoundingWatch:
    """Measures how much of the adapters' change is lost when their sum with the base is rounded to the served type.

    The first steps change a weight by less than half of its distance to the next number of that type, so that rounding
    returns the weight of the base. Measured at each load until little is lost, on the first and the last weight.
    """

    def __init__(self, dtype: Dtype | None = None) -> None:
        """dtype: served type; None for that of the base."""
        self._dtype = dtype
        self._is_over = False

    def lost_share(self, adapters: VerifiedWeights) -> float:
        """Returns the root mean square of what is lost over that of the change; 0 once it was at most `MAX_LOST`."""
        base = adapters.adapter_base
        if self._is_over or base is None:
            return 0.0
        binding, (first, *others) = binding_to_base(adapters, base), adapted_weights(adapters.manifest, base.manifest)
        squares = [self._squares(adapters, base, pair, binding) for pair in (first, *others[-1:])]
        change, lost = (sum(column) for column in zip(*squares, strict=True))
        share = float(lost / change) ** 0.5 if change else 0.0
        self._is_over = bool(change) and share <= MAX_LOST
        return share

    def _squares(
        self, adapters: VerifiedWeights, base: VerifiedWeights, pair: AdaptedWeight, binding: AdapterBinding
    ) -> tuple[float, float]:
        """Returns the sums of squares of the change by an adapter, and of what rounding removes of it."""
        from astraflow.models.precision import torch_dtype_of

        original = float32_values(base, pair.weight)
        total = add_adapter(original.clone(), adapters, pair, binding)
        rounded = total.to(torch_dtype_of(self._dtype or pair.weight.dtype)).float()
        return float((total - original).double().square().sum()), float((rounded - total).double().square().sum())


class AdapterMerger:
    """Turns adapters and their base into whole weights, for a server that loads a model from a file.

    Keeps the sum of the latest version: the next one on the same base computes only the adapted tensors, and comes
    with the positions that changed.
    """

    def __init__(self, dtype: Dtype | None = None) -> None:
        """dtype: type of the adapted tensors; None for that of the base. A server that computes in float32 needs
        float32, since the trainer adds adapters without rounding the sum."""
        self._dtype = dtype
        self._specs: tuple[TensorSpec, ...] = ()
        self._buffer: Buffer | None = None
        self._base_root = b""
        self._adapted: frozenset[str] = frozenset()
        """Names of the adapted tensors in the buffer."""
        self._version: Version | None = None
        """Version in the buffer; None while it is undefined."""

    def merge(self, weights: VerifiedWeights) -> VerifiedWeights:
        """Returns whole weights: the sum if these are adapters, and the same object otherwise; blocks.

        The buffer is valid until the next call. Raises: InvalidInput when the adapters do not fit their base, or have
        none; CorruptData.
        """
        base = weights.adapter_base
        if base is None:
            if read_adapter_binding(weights.manifest) is not None:
                raise InvalidInput(
                    f"cannot load adapters of {weights.manifest.policy!r} version {weights.manifest.version}: their "
                    "base is missing; attach it",
                    code="weights.adapter_base_missing",
                )
            return weights
        binding = binding_to_base(weights, base)
        pairs = {pair.weight.name: pair for pair in adapted_weights(weights.manifest, base.manifest)}
        previous, self._version = self._version, None
        buffer = self._buffer_for(base, pairs)
        if buffer is None:
            buffer, previous = self._copy_base(base, pairs), None
        changes: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = {}
        for spec in self._specs:
            if spec.name not in pairs:
                continue
            bits = self._sum(weights, base, pairs[spec.name], binding, spec)
            target = tensor_bits(spec, buffer)
            changes[spec.name] = np.flatnonzero(target != bits).astype(np.int64, copy=False)
            target[:] = bits
        manifest = hash_into_manifest(
            self._specs,
            buffer,
            policy=weights.manifest.policy,
            version=weights.manifest.version,
            probe=weights.manifest.probe,
            metadata=weights.manifest.metadata,
        )
        self._version = manifest.version
        is_patch = previous is not None and weights.base == previous and _is_sparse(changes, self._specs)
        view = buffer.view()
        view.flags.writeable = False
        return VerifiedWeights(
            manifest=manifest,
            buffer=view,
            base=previous if is_patch else None,
            changes=changes if is_patch else None,
        )

    def _buffer_for(self, base: VerifiedWeights, pairs: dict[str, AdaptedWeight]) -> Buffer | None:
        """Returns the kept buffer if it holds this base, and no adapter outside of these."""
        is_same = self._base_root == base.manifest.root_hash and self._adapted == frozenset(pairs)
        return self._buffer if is_same else None

    def _copy_base(self, base: VerifiedWeights, pairs: dict[str, AdaptedWeight]) -> Buffer:
        """Lays out a new buffer with the tensors of the base; adapted ones are left empty."""
        types = {
            spec.name: (self._dtype or spec.dtype if spec.name in pairs else spec.dtype, spec.shape)
            for spec in base.manifest.tensors
        }
        self._buffer = None  # frees its memory first
        self._specs = lay_out(types)
        buffer = np.zeros(sum(spec.size_bytes for spec in self._specs), dtype=np.uint8)
        originals = {spec.name: spec for spec in base.manifest.tensors}
        for spec in self._specs:
            if spec.name not in pairs:
                tensor_bits(spec, buffer)[:] = tensor_bits(originals[spec.name], base.buffer)
        self._buffer, self._base_root, self._adapted = buffer, base.manifest.root_hash, frozenset(pairs)
        return buffer

    def _sum(
        self,
        weights: VerifiedWeights,
        base: VerifiedWeights,
        pair: AdaptedWeight,
        binding: AdapterBinding,
        spec: TensorSpec,
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.unsignedinteger]]:
        from astraflow.models.precision import bits_of

        return bits_of(add_adapter(float32_values(base, pair.weight), weights, pair, binding), spec.dtype)


def _is_sparse(changes: Changes, specs: tuple[TensorSpec, ...]) -> bool:
    changed = sum(len(positions) for positions in changes.values())
    return changed <= _MAX_PATCHED_SHARE * sum(spec.elements for spec in specs)
