"""Steps between bit patterns, counted in units in the last place: exact, and tiny where weights barely move.

Floating-point bits read as integers are ordered like the numbers they stand for, once negative ones are mirrored. In
that order neighbours differ by one, across zero too. The mapping is a bijection on all bit patterns (NaN payloads and
signed zeros included) and steps wrap around, so any pattern can be reached from any other: no drift, no special cases.
"""

import numpy as np

from astraflow.weights.tensors import BitArray


def zigzag_steps(old: BitArray, new: BitArray) -> BitArray:
    """Steps from `old` to `new`, same width, signs folded in: 0 0, -1 1, +1 2, -2 3, ...

    >>> zigzag_steps(np.array([0x3F80, 0x8000], dtype="<u2"), np.array([0x3F81, 0x0000], dtype="<u2")).tolist()
    [2, 2]
    """
    top = _top_bit(old.dtype)
    step = _ordered(new, top)
    step -= _ordered(old, top)
    folded = np.left_shift(step, step.dtype.type(1))
    folded ^= _spread(step, top)
    return folded


def take_steps(old: BitArray, folded: BitArray) -> BitArray:
    """The bits that lie `folded` steps from `old`: the inverse of `zigzag_steps`."""
    top = _top_bit(old.dtype)
    one = folded.dtype.type(1)
    step = folded >> one
    step ^= np.negative(folded & one)
    step += _ordered(old, top)
    return _unordered(step, top)


def _ordered(bits: BitArray, top: int) -> BitArray:
    """Negative patterns mirrored, positive ones above them."""
    return bits ^ (_spread(bits, top) | bits.dtype.type(1 << top))


def _unordered(place: BitArray, top: int) -> BitArray:
    return place ^ (_spread(~place, top) | place.dtype.type(1 << top))


def _spread(bits: BitArray, top: int) -> BitArray:
    """All ones where the top bit is set."""
    mask: BitArray = np.negative(bits >> bits.dtype.type(top))
    return mask


def _top_bit(dtype: np.dtype[np.unsignedinteger]) -> int:
    size_bytes: int = dtype.itemsize
    return 8 * size_bytes - 1
