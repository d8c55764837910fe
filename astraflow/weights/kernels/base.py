"""What the codec does to the elements of a block: four loops, and what goes in and out of them.

All else about a block (choosing bands, its table, its frame) is about few numbers, in plain Python and numpy, once for
all implementations. Those make and read the same bytes, whatever the input.
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
    """The elements of a block that change, in one order; arrays `[changed]`."""

    at: IndexArray
    """Positions in the block, or ranks."""
    keys: ByteArray
    """Of the old bits, see `bands`."""
    extra: ValueArray
    """Units in the last place beyond one."""
    is_up: ByteArray
    """1 where the element grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandOrder:
    """The elements of one block sorted by band, and inside a band by position: their places in it are *ranks*.

    A bitmap for each band, and counts of what is before each word, lead from positions to ranks and back. One band
    needs neither: `words` and `before` are empty.
    """

    first_keys: Sequence[int]
    """Of each band, ascending from 0; the last band reaches to the highest key."""
    words: WordArray
    """Bitmaps of 64 elements a word, band after band."""
    before: npt.NDArray[np.int32]
    """Elements in all words before one, and, at the end, in all: the rank at which it starts."""
    starts: IndexArray
    """Ranks at which bands start, and the number of elements."""

    @property
    def words_per_band(self) -> int:
        """The same for all."""
        return len(self.words) // len(self.first_keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Values band after band in Rice's code (`streams`); lists have an item for each band."""

    counts: Sequence[int]
    low_bits: Sequence[int]
    sequence: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Which members of each band are meant, told by how many are skipped before each: of those, or of the others."""

    is_inverted: Sequence[bool]
    """Bands whose gaps are between members that are *not* meant, because those are fewer."""
    gaps: Groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """What happened to a block."""

    elements: Sequence[int]
    """Of each band."""
    members: Sequence[int]
    """Changed elements of each band."""
    changed: Listing
    large: Listing
    """Which of the changed made steps of more than one unit."""
    extras: Groups
    """Units beyond two of large steps."""
    directions: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a table says about one band."""

    listed: int
    is_inverted: bool
    low_bits: int
    members: int
    """How many are meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What a table says: lists have an item for each band."""

    changed: Sequence[Entry]
    large: Sequence[Entry]
    low_bits: Sequence[int]
    """Of extras."""


class Kernels(Protocol):
    """The loops. Arrays are C-contiguous, and may be read-only unless they are changed in place."""

    def changes(self, old: BitArray, new: BitArray) -> Changes:
        """What differs, by position."""

    def coded(self, bits: BitArray, first_keys: Sequence[int], changes: Changes) -> Coded:
        """How changes by position are told in bands that begin at these keys. bits: the block before."""

    def band_order(self, bits: BitArray, first_keys: Sequence[int]) -> BandOrder:
        """The order of a block's elements by band."""

    def apply(self, bits: BitArray, order: BandOrder, table: Table, sequences: memoryview) -> IndexArray:
        """Take the steps of a block, in place; returns the positions that moved, sorted.

        sequences: all that follows the table. Raises: CorruptData; `bits` are then as they were.
        """
