"""Steps between bit patterns, in units in the last place: exact, and small where weights barely change.

Floating-point bits read as integers have the order of their numbers once negative ones are mirrored. In that order
neighbours differ by one, also across zero. The mapping is a bijection on all bit patterns (NaN payloads and signed
zeros included) and steps wrap around, so any pattern can be reached from any other: no drift, no special cases.
"""

import numpy as np

from astraflow.weights.tensors import BitArray


def zigzag_steps(old: BitArray, new: BitArray) -> BitArray:
    """Returns the steps from `old` to `new`, same width, signs folded in: 0 0, -1 1, +1 2, -2 3, ...

    >>> zigzag_steps(np.array([0x3F80, 0x8000], dtype="<u2"), np.array([0x3F81, 0x0000], dtype="<u2")).tolist()
    [2, 2]
    """
    top = _top_bit(old.dtype)
    step = _to_ordered(new, top)
    step -= _to_ordered(old, top)
    folded = np.left_shift(step, step.dtype.type(1))
    folded ^= _sign_mask(step, top)
    return folded


def apply_zigzag_steps(old: BitArray, folded: BitArray) -> BitArray:
    """Returns the bits `folded` steps from `old`: the inverse of `zigzag_steps`."""
    top = _top_bit(old.dtype)
    unit = folded.dtype.type(1)
    step = folded >> unit
    step ^= np.negative(folded & unit)
    step += _to_ordered(old, top)
    return _from_ordered(step, top)


def _to_ordered(bits: BitArray, top: int) -> BitArray:
    """Maps bit patterns to ordered integers: negative ones mirrored, positive ones above them."""
    return bits ^ (_sign_mask(bits, top) | bits.dtype.type(1 << top))


def _from_ordered(ordered: BitArray, top: int) -> BitArray:
    return ordered ^ (_sign_mask(~ordered, top) | ordered.dtype.type(1 << top))


def _sign_mask(bits: BitArray, top: int) -> BitArray:
    """Returns all ones where the top bit is set, else 0."""
    mask: BitArray = np.negative(bits >> bits.dtype.type(top))
    return mask


def _top_bit(dtype: np.dtype[np.unsignedinteger]) -> int:
    size_bytes: int = dtype.itemsize
    return 8 * size_bytes - 1
