"""Bands: ranges of magnitudes whose elements change with similar probability and by similar steps.

An optimizer's step does not depend on the size of the weight; a unit in the last place does. Therefore the probability
that an element changes, and by how many units, depends on the exponent of its old value, which every reader with the
base knows. The *key* of an element is the eight bits below its sign: the exponent of float32 and bfloat16; the exponent
and the first bits of the fraction of narrower types. A *band* is a range of keys.
"""

import numpy as np
import numpy.typing as npt

from astraflow.weights.codec.kernels.base import ByteArray, ValueArray, bit_lengths
from astraflow.weights.tensors import BitArray

KEYS = 256
MAX_BANDS = 32
BAND_COST_BITS = 64
"""Approximate bits of a band in a block's table: another band must save more."""
_STRETCH, _SAMPLED = 32, 256
"""Elements per sampled stretch, and stretches per sample, for the histogram of keys."""

_SAMPLED_CHANGES = 4096


def keys_of(bits: BitArray) -> ByteArray:
    """Returns the eight bits below the sign; for one-byte types, their seven bits and a zero.

    >>> keys_of(np.array([0x3F80, 0xBF80], dtype="<u2")).tolist()
    [127, 127]
    """
    width: int = bits.dtype.itemsize
    if width == 1:
        return np.left_shift(bits, np.uint8(1)).astype(np.uint8, copy=False)
    return np.right_shift(bits, bits.dtype.type(8 * width - 9)).astype(np.uint8)


def choose_bands(bits: BitArray, changed: ByteArray, extra: ValueArray, *, limit: int) -> list[int]:
    """Returns the first keys of at most `limit` bands, chosen so that bands predict changes best.

    bits: the old block. changed, extra: keys of its changed elements, and their units beyond one. The block is split
    where that saves most bits, until no split saves more than another band costs. Estimated from samples.
    """
    counts = _counts(bits, changed, extra)
    used = np.flatnonzero(counts.any(axis=1))
    sums = np.zeros((len(used) + 1, counts.shape[1]))
    np.cumsum(counts[used], axis=0, out=sums[1:])
    cuts = [0, len(used)]
    splits: list[tuple[float, int]] = []
    fresh = [0]
    while len(cuts) <= limit:
        splits += [_best_split(sums, start, cuts[cuts.index(start) + 1]) for start in fresh]
        saved, middle = max(splits)
        if saved < BAND_COST_BITS:
            break
        splits.remove((saved, middle))
        start = max(cut for cut in cuts if cut < middle)
        cuts = sorted([*cuts, middle])
        fresh = [start, middle]
    return [0, *(int(used[cut]) for cut in cuts[1:-1])]


def _counts(bits: BitArray, changed: ByteArray, extra: ValueArray) -> npt.NDArray[np.float64]:
    """Estimates per key how many elements stayed, or moved by each number of binary digits: `[KEYS, outcomes]`."""
    every = max(1, len(changed) // _SAMPLED_CHANGES)
    digits = bit_lengths(extra[::every])
    width = int(digits.max()) + 1
    outcomes = changed[::every] * np.int64(width) + digits
    moved = np.bincount(outcomes, minlength=KEYS * width).reshape(KEYS, width) * (len(changed) / len(digits))
    sample = _sample(bits)
    everything = np.bincount(keys_of(sample), minlength=KEYS) * (len(bits) / len(sample))
    stayed = np.maximum(everything - moved.sum(axis=1), 0)
    return np.concatenate([stayed[:, None], moved], axis=1)


def _sample(bits: BitArray) -> BitArray:
    """Returns short stretches spread over the block."""
    rows = len(bits) // (_SAMPLED * _STRETCH)
    return bits[: rows * _SAMPLED * _STRETCH].reshape(rows, -1)[:, :_STRETCH].reshape(-1) if rows else bits


def _best_split(sums: npt.NDArray[np.float64], start: int, end: int) -> tuple[float, int]:
    """Returns the bits saved by the best cut between the keys `start` and `end`, and the cut."""
    if end - start < 2:
        return 0.0, start
    cuts = end - start - 1
    parts = np.empty((2 * cuts + 1, sums.shape[1]))
    np.subtract(sums[start + 1 : end], sums[start], out=parts[:cuts])
    np.subtract(sums[end], sums[start + 1 : end], out=parts[cuts:-1])
    parts[-1] = sums[end] - sums[start]
    entropies = _entropy_bits(parts)
    saved = entropies[-1] - entropies[:cuts] - entropies[cuts:-1]
    best = int(np.argmax(saved))
    return float(saved[best]), start + 1 + best


def _entropy_bits(counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns the bits that encode the outcomes of `[rows, outcomes]` elements, each outcome coded by its frequency."""
    total = counts.sum(axis=1)
    bits: npt.NDArray[np.float64] = total * np.log2(np.maximum(total, 1))
    bits -= (counts * np.log2(np.maximum(counts, 1))).sum(axis=1)
    return bits
