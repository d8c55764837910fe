"""Rice's code: what a value takes with a number of low bits. `streams` says what it is."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from astraflow.weights.kernels.base import IndexArray, ValueArray

ESCAPE = 16
"""Quotients from here on are told as this and an excess."""
MAX_LOW_BITS = 31
MAX_VALUE = 2**32 - 1
SAMPLED_VALUES = 1024
"""Of each group, at least, where not all are looked at to choose its low bits."""


def sampled_every(counts: Sequence[int]) -> int:
    """One value in how many is looked at, where all groups are large."""
    return max(1, min((count for count in counts if count), default=0) // SAMPLED_VALUES)


def bit_lengths(values: ValueArray) -> IndexArray:
    """Binary digits of each value.

    >>> bit_lengths(np.array([0, 1, 5, 2**32 - 1], dtype=np.uint32)).tolist()
    [0, 1, 3, 32]
    """
    digits: IndexArray = values.astype(np.float64).view(np.int64) >> 52
    digits -= 1022
    np.maximum(digits, 0, out=digits)
    return digits


def _cost() -> npt.NDArray[np.int64]:
    cost = np.zeros((33, MAX_LOW_BITS + 1), dtype=np.int64)
    for length in range(33):
        for bits in range(MAX_LOW_BITS + 1):
            quotients = [(2**length * part // 64) >> bits for part in range(32, 64)] if length else [0] * 32
            cost[length, bits] = sum(
                2 * (min(quotient, ESCAPE) + 1 + bits + 32 * (quotient >= ESCAPE)) for quotient in quotients
            )
    return cost


COST = _cost()
"""Bits, times 64, that a value of each bit length takes with each number of low bits `[33, MAX_LOW_BITS + 1]`."""
