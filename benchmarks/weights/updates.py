"""Pairs of versions to encode: made by an optimizer on synthetic gradients, or recorded by the store of a real run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype, Manifest
from astraflow.weights.codec.delta import apply_delta
from astraflow.weights.store.records import decode_record, file_name
from astraflow.weights.tensors import BitArray, Buffer, build_layout, width_regions

FloatArray = npt.NDArray[np.float32]
_SIDE = 2048
_STEPS = 24
"""Optimizer steps up to and including the measured one: its first moment has settled by then."""
_BETAS, _EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two versions of the same tensors, all of two-byte elements for the controls."""

    base: Manifest
    old: Buffer
    target: Manifest
    new: Buffer

    @property
    def bits(self) -> tuple[BitArray, BitArray]:
        """Returns the elements of both, where all tensors have one width."""
        (run,) = width_regions(self.target)
        return run.bits(self.old), run.bits(self.new)

    @property
    def changed(self) -> int:
        """Counts the elements that differ."""
        return sum(
            int(np.count_nonzero(run.bits(self.old) != run.bits(self.new))) for run in width_regions(self.target)
        )

    @property
    def elements(self) -> int:
        """Counts all elements."""
        return sum(run.elements for run in width_regions(self.target))


class Training:
    """bfloat16 roundings of float32 masters under Adam.

    Masters: matrices of `[2048, 2048]`, normal, each with a spread around 0.02. Gradients: noise, plus an outer product
    that changes slowly, scaled by row and column. They do not depend on the weights, so one run of Adam gives the
    versions for every learning rate.
    """

    def __init__(self, *, size_bytes: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._matrices = [_trained(rng) for _ in range(max(1, size_bytes // (2 * _SIDE**2)))]

    def pair(self, density: float) -> Pair:
        """Returns the last step at the learning rate at which this share of the elements changes."""
        low, high = 1e-9, 1e-3
        for _ in range(25):
            rate = (low * high) ** 0.5
            changed_share = float(np.mean([_changed_share(matrix, rate) for matrix in self._matrices]))
            low, high = (rate, high) if changed_share < density else (low, rate)
        old, new = (np.concatenate([_rounded(matrix, rate, sum_) for matrix in self._matrices]) for sum_ in (1, 2))
        return pair_of(old, new)


def pair_of(old: BitArray, new: BitArray) -> Pair:
    """Returns two versions of one bfloat16 tensor."""
    (base, before), (target, after) = (
        build_layout(
            {"weight": (Dtype.BFLOAT16, (len(bits),), bits)}, policy=PolicyId("solver"), version=Version(number)
        )
        for number, bits in enumerate((old, new))
    )
    return Pair(base=base, old=before, target=target, new=after)


def recorded(folder: Path) -> list[tuple[Manifest, Buffer]]:
    """Returns every version that a stopped store has for one policy, oldest first."""
    versions: list[tuple[Manifest, Buffer]] = []
    for path in sorted(folder.glob("*.record")):
        record = decode_record(path.read_bytes())
        if record.full is not None:
            buffer = np.fromfile(folder / file_name(record.full), dtype=np.uint8)
        elif record.delta is not None and versions and versions[-1][0].version == record.delta.base:
            buffer = versions[-1][1].copy()
            apply_delta((folder / file_name(record.delta)).read_bytes(), record.manifest, buffer)
        else:
            continue  # its base was retired: the first versions after a retired anchor
        versions.append((record.manifest, buffer))
    return versions


def spans(versions: Sequence[tuple[Manifest, Buffer]], behind: int) -> Iterator[Pair]:
    """Yields consecutive pairs at this distance, without the first version, which is the same for all."""
    for start in range(1, len(versions) - behind, behind):
        (base, old), (target, new) = versions[start], versions[start + behind]
        yield Pair(base=base, old=old, target=target, new=new)


def _trained(rng: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Returns the masters and their updates, in units of the learning rate, before and after the last step."""
    spread = 0.02 * np.exp(0.3 * rng.standard_normal())
    masters = (rng.standard_normal((_SIDE, _SIDE), dtype=np.float32) * spread).astype(np.float32)
    rows, columns = (np.exp(0.7 * rng.standard_normal(size)).astype(np.float32) for size in ((_SIDE, 1), (1, _SIDE)))
    steady = [rng.standard_normal(size, dtype=np.float32) for size in ((_SIDE, 1), (1, _SIDE))]
    first, second, moved, before = (np.zeros_like(masters) for _ in range(4))
    for step in range(1, _STEPS + 1):
        left, right = (0.7 * (side + rng.standard_normal(side.shape, dtype=np.float32)) for side in steady)
        gradient = rng.standard_normal(masters.shape, dtype=np.float32)
        gradient += 0.3 * left * right
        gradient *= rows * columns
        first += (1 - _BETAS[0]) * (gradient - first)
        gradient *= gradient
        second += (1 - _BETAS[1]) * (gradient - second)
        before[:] = moved
        moved += (first / (1 - _BETAS[0] ** step)) / (np.sqrt(second / (1 - _BETAS[1] ** step)) + _EPSILON)
    return masters, before, moved


def _changed_share(matrix: tuple[FloatArray, FloatArray, FloatArray], rate: float) -> float:
    """Estimates the share of changed elements from some rows."""
    masters, before, after = (array[::64] for array in matrix)
    old, new = (_rounded((masters, before, after), rate, sum_) for sum_ in (1, 2))
    return float(np.mean(old != new))


def _rounded(matrix: tuple[FloatArray, FloatArray, FloatArray], rate: float, which: int) -> BitArray:
    """Returns bfloat16 bits, rounded to nearest, ties to even."""
    bits = (matrix[0] - np.float32(rate) * matrix[which]).view("<u4").reshape(-1)
    bits += ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    return (bits >> np.uint32(16)).astype("<u2")
