"""Versions as training makes them: float32 masters that Adam moves a little, published as bf16 roundings."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype, Manifest
from astraflow.weights.tensors import BITS, Buffer, build_layout

POLICY = PolicyId("policy")
WEIGHT_SPREAD = 0.02
MOMENTUM = 0.9
STEP = ((1 - MOMENTUM) / (1 + MOMENTUM)) ** 0.5
"""Spread of Adam's step in learning rates, for gradients of pure noise: that of a mean over their past."""
TENSOR_ELEMENTS = 2**21


def versions(count: int, *, elements: int, learning_rate: float, seed: int = 0) -> Iterator[tuple[Manifest, Buffer]]:
    """Yields this many versions of a model; each step is Adam's on gradients of pure noise."""
    rng = np.random.default_rng(seed)
    masters = rng.normal(0, WEIGHT_SPREAD, elements).astype(np.float32)
    momentum = rng.standard_normal(elements, dtype=np.float32)
    for version in range(count):
        yield _published(masters, version)
        momentum *= np.float32(MOMENTUM)
        momentum += np.float32((1 - MOMENTUM**2) ** 0.5) * rng.standard_normal(elements, dtype=np.float32)
        masters -= np.float32(learning_rate * STEP) * momentum


def _published(masters: npt.NDArray[np.float32], version: int) -> tuple[Manifest, Buffer]:
    rounded = masters.view(np.uint32)
    bits = ((rounded + 0x7FFF + (rounded >> 16 & 1)) >> 16).astype(BITS[2])
    tensors = {
        f"layer.{start // TENSOR_ELEMENTS}": (Dtype.BFLOAT16, (len(part),), part)
        for start in range(0, len(bits), TENSOR_ELEMENTS)
        for part in [bits[start : start + TENSOR_ELEMENTS]]
    }
    return build_layout(tensors, policy=POLICY, version=Version(version))
