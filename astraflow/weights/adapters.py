"""Low-rank adapters as versions of their own: small, and named after the weights that they are added to.

A policy that trains adapters (LoRA, arXiv:2106.09685) has two streams. Its base is published once, as a policy of its
own, by custom `POLICY.base`; the versions of the policy itself hold nothing but the adapters, and their manifests name
the base and its root hash. For an adapted weight `W` of shape [out, in], called `X.weight`, they hold

    X.lora_A.weight [rank, in]    X.lora_B.weight [out, rank]    and the weight served is  W + scale · B · A
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Manifest, TensorSpec
from astraflow.weights.tensors import HASH_BYTES

DOWN, UP = ".lora_A.weight", ".lora_B.weight"
_WEIGHT = ".weight"
_POLICY, _VERSION, _ROOT, _SCALE = "adapter.base", "adapter.base_version", "adapter.base_root", "adapter.scale"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFacts:
    """What adapters are added to, and how much of them."""

    base: PolicyId
    base_version: Version
    base_root: bytes
    scale: float
    """Usually alpha / rank."""

    @classmethod
    def on(cls, base: Manifest, *, scale: float) -> "AdapterFacts":
        """For adapters of a version that was published."""
        return cls(base=base.policy, base_version=base.version, base_root=base.root_hash, scale=scale)

    def metadata(self) -> dict[str, str]:
        """What a publisher is given for each version of the adapters."""
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


def adapter_facts(manifest: Manifest) -> AdapterFacts | None:
    """What a manifest says; None when it is of a whole model. Raises: CorruptData."""
    metadata = manifest.metadata
    if _POLICY not in metadata:
        return None
    try:
        facts = AdapterFacts(
            base=PolicyId(metadata[_POLICY]),
            base_version=Version(int(metadata[_VERSION])),
            base_root=bytes.fromhex(metadata[_ROOT]),
            scale=float(metadata[_SCALE]),
        )
    except (KeyError, ValueError, InvalidInput) as problem:
        raise CorruptData(f"{_name(manifest)} does not say what its adapters are added to: {problem!r}") from problem
    if len(facts.base_root) != HASH_BYTES or not math.isfinite(facts.scale):
        raise CorruptData(f"{_name(manifest)} does not say what its adapters are added to: {dict(metadata)}")
    return facts


def adapted_weights(adapters: Manifest, base: Manifest) -> tuple[AdaptedWeight, ...]:
    """The weights that adapters change. Raises: InvalidInput naming the tensor that fits nothing in the base."""
    published: Mapping[str, TensorSpec] = {spec.name: spec for spec in adapters.tensors}
    weights: Mapping[str, TensorSpec] = {spec.name: spec for spec in base.tensors}
    found: list[AdaptedWeight] = []
    for name, down in published.items():
        stem = name.removesuffix(DOWN) if name.endswith(DOWN) else name.removesuffix(UP)
        up, weight = published.get(stem + UP), weights.get(stem + _WEIGHT)
        if stem == name or stem + DOWN not in published or up is None or weight is None:
            raise InvalidInput(f"{_name(adapters)}: {name} adapts nothing in {_name(base)}, or is half of a pair")
        if name.endswith(UP):
            continue
        if len(weight.shape) != 2 or (up.shape, down.shape) != _shapes(weight, rank=(*down.shape, 0)[0]):
            raise InvalidInput(
                f"{_name(adapters)}: {stem} has adapters {up.shape} and {down.shape}, its weight is {weight.shape}"
            )
        found.append(AdaptedWeight(weight=weight, down=down, up=up))
    return tuple(found)


def _shapes(weight: TensorSpec, *, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (weight.shape[0], rank), (rank, weight.shape[1])


def _name(manifest: Manifest) -> str:
    return f"version {manifest.version} of {manifest.policy}"
