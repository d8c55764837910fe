"""What the codec does to every element of a block: a few loops, each one call, and what they work on.

All else about a block (choosing bands, tables, framing) works on few numbers, in plain Python and numpy, once for all
implementations. Those agree in every bit, for whatever input.
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
class Gaps:
    """Which members of each band are meant, told by how many are skipped before each: of those, or of the others."""

    is_inverted: Sequence[bool]
    """Bands whose gaps are between members that are *not* meant, because those are fewer."""
    counts: IndexArray
    """Gaps of each band."""
    values: ValueArray
    """The gaps, band after band."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RiceParts:
    """Groups of values in Rice's code, see `streams`."""

    low_bits: Sequence[int]
    """Of each group."""
    unary: bytes
    remainders: bytes
    excesses: bytes


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


class Kernels(Protocol):
    """The loops. Arrays are C-contiguous; those that are given may be read-only, unless they are changed in place."""

    def changes(self, old: BitArray, new: BitArray) -> Changes:
        """What differs, by position."""

    def band_order(self, bits: BitArray, first_keys: Sequence[int]) -> BandOrder:
        """The order of a block's elements by band."""

    def by_rank(self, changes: Changes, order: BandOrder) -> Changes:
        """Changes by rank instead of position."""

    def move(self, bits: BitArray, order: BandOrder, ranks: IndexArray, folded: BitArray) -> IndexArray:
        """Take steps, in place; returns the positions that moved, sorted.

        ranks: sorted, no two alike, below the number of elements. folded: for each, its step as `ulp.zigzag_steps`.
        """

    def gaps(self, chosen: IndexArray, starts: IndexArray) -> Gaps:
        """The shorter way to say which members are meant. chosen: sorted; starts: of bands, and the end of the last."""

    def members(
        self, gaps: IndexArray, counts: Sequence[int], is_inverted: Sequence[bool], starts: IndexArray
    ) -> IndexArray:
        """The members that are meant, sorted: the inverse of `gaps`. gaps: from 0 to 2**32 - 1, and overwritten.

        Raises: CorruptData when one is beyond the end of its band.
        """

    def rice_parts(self, values: ValueArray, counts: IndexArray) -> RiceParts:
        """Groups of values, each with the low bits that make it smallest; a sample decides on those of large groups."""

    def quotients(self, unary: ByteArray, count: int) -> IndexArray:
        """What a unary part says, at most `ESCAPE` each `[count]`. Raises: CorruptData."""

    def add_remainders(
        self, values: IndexArray, remainders: ByteArray, counts: Sequence[int], low_bits: Sequence[int]
    ) -> None:
        """Turn quotients into values, in place. remainders: as many whole bytes as all groups need.

        Raises: CorruptData when one would exceed `MAX_VALUE`.
        """
