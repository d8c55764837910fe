"""Lower bound of the size of deltas: the bytes that any code needs that knows the old exponents."""

import numpy as np
import numpy.typing as npt

from astraflow.weights.codec.bands import KEYS, keys_of
from astraflow.weights.codec.kernels.reference import zigzag_steps
from astraflow.weights.tensors import BitArray, width_regions
from benchmarks.weights.updates import Pair

_LARGEST = 63
"""Larger steps count as one outcome, which makes the lower bound a little too low."""


def floor_bytes(pair: Pair, *, by_tensor: bool = False) -> float:
    """Returns the entropy of all steps in bytes, given the exponent of the old value, and optionally the tensor.

    The frequencies come from the pair itself: a code would also have to transmit or learn them.
    """
    size_bytes = 0.0
    for run in width_regions(pair.target):
        old, new = run.bits(pair.old), run.bits(pair.new)
        sizes = [spec.size_bytes // run.width for spec in run.tensors] if by_tensor else [run.elements]
        ends = np.cumsum(sizes)
        for start, end in zip(ends - sizes, ends, strict=True):
            size_bytes += _information_bits(old[start:end], new[start:end]) / 8
    return size_bytes


def _information_bits(old: BitArray, new: BitArray) -> float:
    steps = np.minimum(zigzag_steps(old, new), old.dtype.type(_LARGEST)).astype(np.int64)
    counts = np.bincount(keys_of(old) * np.int64(_LARGEST + 1) + steps, minlength=KEYS * (_LARGEST + 1))
    table: npt.NDArray[np.float64] = counts.reshape(KEYS, -1).astype(np.float64)
    of_key = table.sum(axis=1)
    return float((of_key * np.log2(np.maximum(of_key, 1))).sum() - (table * np.log2(np.maximum(table, 1))).sum())
