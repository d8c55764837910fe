"""Sizes of values in a Rice code, by the number of low bits. `payload_codec` describes the code."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from astraflow.weights.codec.kernels.base import IndexArray, ValueArray

ESCAPE = 16
"""Smallest quotient that is encoded as this number and an excess."""
MAX_LOW_BITS = 31
MAX_VALUE = 2**32 - 1
SAMPLED_VALUES = 1024
"""Smallest number of values per group that are sampled to choose its low bits."""


def sampled_every(counts: Sequence[int]) -> int:
    """Returns the sampling interval of values, which is more than 1 if all groups are large."""
    return max(1, min((count for count in counts if count), default=0) // SAMPLED_VALUES)


def bit_lengths(values: ValueArray) -> IndexArray:
    """Returns the number of binary digits of each value.

    >>> bit_lengths(np.array([0, 1, 5, 2**32 - 1], dtype=np.uint32)).tolist()
    [0, 1, 3, 32]
    """
    digits: IndexArray = values.astype(np.float64).view(np.int64) >> 52
    digits -= 1022
    np.maximum(digits, 0, out=digits)
    return digits


def _cost() -> npt.NDArray[np.int64]:
    lengths, bits = np.arange(33)[:, None, None], np.arange(MAX_LOW_BITS + 1)[:, None]
    values = np.where(lengths > 0, (np.arange(32, 64, dtype=np.int64) << lengths) // 64, 0)
    quotients = values >> bits
    return np.asarray((2 * (np.minimum(quotients, ESCAPE) + 1 + bits + 32 * (quotients >= ESCAPE))).sum(axis=2))


COST = _cost()
"""Bits, times 64, of a value of each bit length with each number of low bits `[33, MAX_LOW_BITS + 1]`."""
