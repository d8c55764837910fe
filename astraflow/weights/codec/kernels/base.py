"""Interface of the codec's loops over the elements of a block, and their inputs and outputs.

All other parts of a block (choice of bands, table, frame) involve few numbers and are shared by all implementations, in
plain Python and numpy. All implementations write and read the same bytes for every input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from astraflow.weights.tensors import BitArray

ByteArray = npt.NDArray[np.uint8]
ValueArray = npt.NDArray[np.uint32]
IndexArray = npt.NDArray[np.int64]
WordArray = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changed elements of a block, in one order; arrays `[changed]`."""

    positions: IndexArray
    """Positions in the block, or ranks."""
    keys: ByteArray
    """Keys of the old bits, see `bands`."""
    extra_units: ValueArray
    """Units in the last place beyond one."""
    is_up: ByteArray
    """1 where the element grows, else 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandOrder:
    """Elements of one block sorted by band, and within a band by position; indices in this order are *ranks*.

    One bitmap per band, and the number of elements before each word, map positions to ranks and back. A single band
    needs neither: `words` and `cumulative_counts` are empty.
    """

    first_keys: Sequence[int]
    """First key of each band, ascending from 0; the last band reaches to the highest key."""
    words: WordArray
    """Bitmaps of 64 elements per word, band after band."""
    cumulative_counts: npt.NDArray[np.int32]
    """Elements in all earlier words, which is the rank at which the word starts; the last item is the total."""
    starts: IndexArray
    """Rank at which each band starts, then the number of elements."""

    @property
    def words_per_band(self) -> int:
        """Number of words in each band's bitmap."""
        return len(self.words) // len(self.first_keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class RiceGroups:
    """Values band after band in Rice code (`rice`); lists have one item per band."""

    counts: Sequence[int]
    low_bits: Sequence[int]
    sequence: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberList:
    """Selected members of each band, encoded as gaps: the number of skipped members before each listed one."""

    is_inverted: Sequence[bool]
    """True for bands whose gaps list the members that are *not* selected, where these are fewer."""
    gaps: RiceGroups


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedChanges:
    """Changes of a block, encoded."""

    elements: Sequence[int]
    """Elements of each band."""
    members: Sequence[int]
    """Changed elements of each band."""
    changed: MemberList
    large: MemberList
    """Changed elements with steps of more than one unit."""
    extras: RiceGroups
    """Size of each large step minus two units."""
    directions: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BandEntry:
    """Table entry of one band."""

    listed: int
    is_inverted: bool
    low_bits: int
    members: int
    """Number of selected members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandTable:
    """Table of a block; lists have one item per band."""

    changed: Sequence[BandEntry]
    large: Sequence[BandEntry]
    low_bits: Sequence[int]
    """Low bits of the extras."""


class Kernels(Protocol):
    """Loops of the codec. Arrays are C-contiguous; arrays that are not changed in place may be read-only."""

    def find_changes(self, old: BitArray, new: BitArray) -> Changes:
        """Returns the differences, by position."""

    def encode_changes(self, bits: BitArray, first_keys: Sequence[int], changes: Changes) -> EncodedChanges:
        """Encodes changes by position in bands that begin at these keys. bits: the old block."""

    def band_order(self, bits: BitArray, first_keys: Sequence[int]) -> BandOrder:
        """Returns the order of a block's elements by band."""

    def apply(self, bits: BitArray, order: BandOrder, table: BandTable, sequences: memoryview) -> IndexArray:
        """Applies the steps to a block in place; returns the positions that changed, sorted.

        sequences: all bytes after the table. Raises: CorruptData; `bits` are then unchanged.
        """


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
