"""Versions of weights, for tests."""

from collections.abc import Mapping

import numpy as np

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype, Manifest, Transfer, TransferKind
from astraflow.weights.codec.chunks import transfer_of
from astraflow.weights.codec.delta import encode_delta
from astraflow.weights.tensors import BITS, BitArray, Buffer, SnapshotTensors, build_layout

POLICY = PolicyId("solver")

MIXED: Mapping[str, tuple[Dtype, tuple[int, ...]]] = {
    "embed.weight": (Dtype.BFLOAT16, (64, 48)),
    "norm.weight": (Dtype.FLOAT32, (48,)),
    "scale": (Dtype.FLOAT32, ()),
    "half": (Dtype.FLOAT16, (7, 3)),
    "empty": (Dtype.BFLOAT16, (0, 48)),
    "tiny.e4m3": (Dtype.FLOAT8_E4M3, (33,)),
    "tiny.e5m2": (Dtype.FLOAT8_E5M2, (5, 5)),
}
"""Every dtype, a scalar, an empty tensor, odd sizes; not in the order of the layout."""


def snapshot(seed: int = 0, shapes: Mapping[str, tuple[Dtype, tuple[int, ...]]] = MIXED) -> SnapshotTensors:
    """Returns tensors of random bits."""
    rng = np.random.default_rng(seed)
    return {
        name: (dtype, shape, rng.integers(0, 256**dtype.size_bytes, int(np.prod(shape)), dtype=BITS[dtype.size_bytes]))
        for name, (dtype, shape) in shapes.items()
    }


def stepped(tensors: SnapshotTensors, seed: int, *, density: float = 0.02) -> SnapshotTensors:
    """Returns the tensors after a small step: a share of the elements moves by one or two bits."""
    rng = np.random.default_rng(seed)

    def moved(bits: BitArray) -> BitArray:
        steps = rng.choice([1, 2, -1], size=bits.size).astype(np.int64).astype(bits.dtype)
        return np.where(rng.random(bits.size) < density, bits + steps, bits).astype(bits.dtype)

    return {name: (dtype, shape, moved(bits)) for name, (dtype, shape, bits) in tensors.items()}


def history(versions: int, *, seed: int = 0, density: float = 0.02) -> list[SnapshotTensors]:
    """Returns that many versions, each a small step after the previous one."""
    snapshots = [snapshot(seed)]
    while len(snapshots) < versions:
        snapshots.append(stepped(snapshots[-1], seed=seed + len(snapshots), density=density))
    return snapshots


def layout(tensors: SnapshotTensors, version: int = 0, *, policy: PolicyId = POLICY) -> tuple[Manifest, Buffer]:
    """Returns manifest and buffer."""
    return build_layout(tensors, policy=policy, version=Version(version))


def full_file(manifest: Manifest, buffer: Buffer) -> tuple[Transfer, bytes]:
    """Returns the full snapshot as it is transferred."""
    return transfer_of(manifest, buffer.data, base=None), buffer.tobytes()


def delta_file(base: tuple[Manifest, Buffer], target: tuple[Manifest, Buffer]) -> tuple[Transfer, bytes]:
    """Returns the delta between two versions as it is transferred."""
    data = encode_delta(*base, *target).data
    transfer = transfer_of(target[0], data, base=base[0].version)
    assert transfer.kind is TransferKind.DELTA
    return transfer, data
