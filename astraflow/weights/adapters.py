"""Low-rank adapters as separate versions: small, and named after the weights that they are added to.

A policy that trains adapters (LoRA, arXiv:2106.09685) has two streams. Its base is published once, as a separate
policy, by custom `POLICY.base`; versions of the policy itself hold only the adapters, and their manifests name the
base and its root hash. For an adapted weight `W` of shape [out, in], called `X.weight`, they hold

    X.lora_A.weight [rank, in]    X.lora_B.weight [out, rank]    and the weight served is  W + scale · B · A
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Manifest, TensorSpec
from astraflow.weights.tensors import HASH_BYTES

DOWN_SUFFIX, UP_SUFFIX = ".lora_A.weight", ".lora_B.weight"
PEFT_CONFIG, PEFT_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Files of a folder in the format of peft."""
PEFT_PREFIX = "base_model.model."
"""Before the names of tensors in a folder in the format of peft."""
_WEIGHT = ".weight"

MAX_LOST = 0.1
"""Share of the adapters' change that rounding their sum with the base may remove: a node warns above it, and an export
refuses."""
_POLICY, _VERSION, _ROOT, _SCALE = "adapter.base", "adapter.base_version", "adapter.base_root", "adapter.scale"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterBinding:
    """Base version that adapters are added to, and their scale."""

    base: PolicyId
    base_version: Version
    base_root: bytes
    scale: float
    """Factor of the adapters' product, usually alpha / rank."""

    @classmethod
    def for_base(cls, base: Manifest, *, scale: float) -> "AdapterBinding":
        """Returns the binding of adapters to a published base version."""
        return cls(base=base.policy, base_version=base.version, base_root=base.root_hash, scale=scale)

    def metadata(self) -> dict[str, str]:
        """Returns the manifest metadata for each version of the adapters."""
        return {
            _POLICY: self.base,
            _VERSION: str(self.base_version),
            _ROOT: self.base_root.hex(),
            _SCALE: repr(self.scale),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedWeight:
    """One weight of the base and its adapter."""

    weight: TensorSpec
    down: TensorSpec
    """[rank, in]"""
    up: TensorSpec
    """[out, rank]"""


def read_adapter_binding(manifest: Manifest) -> AdapterBinding | None:
    """Returns the binding in a manifest; None for a whole model. Raises: CorruptData."""
    metadata = manifest.metadata
    if _POLICY not in metadata:
        return None
    try:
        binding = AdapterBinding(
            base=PolicyId(metadata[_POLICY]),
            base_version=Version(int(metadata[_VERSION])),
            base_root=bytes.fromhex(metadata[_ROOT]),
            scale=float(metadata[_SCALE]),
        )
    except (KeyError, ValueError, InvalidInput) as problem:
        raise CorruptData(
            f"cannot read the adapter base of {_name(manifest)}: {problem!r}; publish the adapters with the metadata "
            "of an AdapterBinding",
            code="weights.adapter_metadata",
        ) from problem
    if len(binding.base_root) != HASH_BYTES or not math.isfinite(binding.scale):
        raise CorruptData(
            f"cannot read the adapter base of {_name(manifest)}: root hash or scale is invalid in {dict(metadata)}; "
            "publish the adapters with the metadata of an AdapterBinding",
            code="weights.adapter_metadata",
        )
    return binding


def adapted_weights(adapters: Manifest, base: Manifest) -> tuple[AdaptedWeight, ...]:
    """Returns the weights that adapters change. Raises: InvalidInput naming an unmatched tensor."""
    published: Mapping[str, TensorSpec] = {spec.name: spec for spec in adapters.tensors}
    weights: Mapping[str, TensorSpec] = {spec.name: spec for spec in base.tensors}
    pairs: list[AdaptedWeight] = []
    for name, down in published.items():
        stem = _stem(name)
        up, weight = published.get(stem + UP_SUFFIX), weights.get(stem + _WEIGHT)
        if stem == name or stem + DOWN_SUFFIX not in published or up is None or weight is None:
            raise InvalidInput(
                f"cannot use {_name(adapters)} as adapters: {name!r} has no weight in {_name(base)} or no second half; "
                "publish both halves under the name of their weight",
                code="weights.adapter_unpaired",
            )
        if name.endswith(UP_SUFFIX):
            continue
        if len(weight.shape) != 2 or (up.shape, down.shape) != _shapes(weight, rank=(*down.shape, 0)[0]):
            raise InvalidInput(
                f"cannot use {_name(adapters)} as adapters: {stem!r} has shapes {up.shape} and {down.shape}, its "
                f"weight has {weight.shape}; publish [out, rank] and [rank, in]",
                code="weights.adapter_shape",
            )
        pairs.append(AdaptedWeight(weight=weight, down=down, up=up))
    return tuple(pairs)


def peft_config(names: Iterable[str], *, rank: int, scale: float) -> dict[str, Any]:
    """Returns the content of `adapter_config.json`. names: of the tensors of a version."""
    alpha = scale * rank
    modules = {_stem(name).rpartition(".")[2] for name in names}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(modules),
    }


def _stem(name: str) -> str:
    """Returns the name of the adapted layer."""
    return name.removesuffix(DOWN_SUFFIX) if name.endswith(DOWN_SUFFIX) else name.removesuffix(UP_SUFFIX)


def _shapes(weight: TensorSpec, *, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (weight.shape[0], rank), (rank, weight.shape[1])


def _name(manifest: Manifest) -> str:
    return f"version {manifest.version} of {manifest.policy}"
