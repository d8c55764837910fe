"""Which members of each band are meant, said by the gaps between them: of those few, or of the few others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from astraflow.contract.errors import CorruptData
from astraflow.weights.streams import (
    MAX_LOW_BITS,
    CountArray,
    Reader,
    ValueArray,
    choose_low_bits,
    decode_rice,
    encode_rice,
    number,
)

IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Numbers band after band: how many each band has, and with how many low bits they are coded."""

    counts: list[int]
    low_bits: list[int]
    values: ValueArray

    def encode(self) -> list[bytes]:
        """The numbers in Rice's code."""
        return encode_rice(self.values, self.counts, self.low_bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The members that are meant as gaps: how many are skipped before each."""

    is_inverted: list[bool]
    """Bands whose gaps are between members that are *not* meant, because those are fewer."""
    gaps: Groups

    def entry(self, band: int) -> list[bytes]:
        """What a table says about one band."""
        listed = self.gaps.counts[band]
        entry = [number(2 * listed + self.is_inverted[band])]
        return [*entry, number(self.gaps.low_bits[band])] if listed else entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a table said about one band."""

    listed: int
    is_inverted: bool
    low_bits: int
    members: int
    """How many are meant."""


def groups_of(values: ValueArray, counts: CountArray) -> Groups:
    """Values with the low bits that suit them. counts: of each band."""
    return Groups(counts=counts.tolist(), low_bits=choose_low_bits(values, counts), values=values)


def listing_of(chosen: IndexArray, starts: IndexArray) -> Listing:
    """How to say which members are meant. chosen: sorted; starts: of each band, and the end of the last."""
    bounds = np.searchsorted(chosen, starts)
    counts, sizes = np.diff(bounds), np.diff(starts)
    is_inverted = 2 * counts > sizes
    if is_inverted.any():
        chosen = _flipped(np.split(chosen, bounds[1:-1]), is_inverted.tolist(), starts)
        counts = np.where(is_inverted, sizes - counts, counts)
    gaps = np.diff(chosen, prepend=-1)
    gaps -= 1
    is_used = counts > 0
    firsts = (np.cumsum(counts) - counts)[is_used]
    gaps[firsts] = chosen[firsts] - starts[:-1][is_used]
    return Listing(is_inverted=is_inverted.tolist(), gaps=groups_of(gaps.astype(np.uint32), counts))


def read_entry(reader: Reader, *, size: int) -> Entry:
    """What the table says about a band of that size; about an empty one it says nothing. Raises: CorruptData."""
    listed, is_inverted = divmod(reader.number(most=2 * size + 1), 2) if size else (0, 0)
    low_bits = reader.number(most=MAX_LOW_BITS) if listed else 0
    members = size - listed if is_inverted else listed
    return Entry(listed=listed, is_inverted=bool(is_inverted), low_bits=low_bits, members=members)


def read_chosen(reader: Reader, entries: Sequence[Entry], starts: IndexArray) -> IndexArray:
    """The members that are meant, sorted: the inverse of `listing_of`. Raises: CorruptData."""
    counts = np.array([entry.listed for entry in entries])
    chosen = decode_rice(reader, counts.tolist(), [entry.low_bits for entry in entries])
    chosen += 1
    np.cumsum(chosen, out=chosen)
    ends = np.cumsum(counts)
    before = np.concatenate([[0], chosen])[ends - counts]
    chosen += np.repeat(starts[:-1] - 1 - before, counts)
    is_used = counts > 0
    if (chosen[ends[is_used] - 1] >= starts[1:][is_used]).any():
        raise CorruptData("a delta block lists an element beyond the end of its band")
    is_inverted = [entry.is_inverted for entry in entries]
    return _flipped(np.split(chosen, ends[:-1]), is_inverted, starts) if any(is_inverted) else chosen


def _flipped(pieces: Sequence[IndexArray], is_inverted: Sequence[bool], starts: IndexArray) -> IndexArray:
    """The members of each band, sorted; of inverted ones those that were not there."""
    return np.concatenate(
        [
            _others(piece, starts[band], starts[band + 1]) if is_inverted[band] else piece
            for band, piece in enumerate(pieces)
        ]
    )


def _others(chosen: IndexArray, start: int, end: int) -> IndexArray:
    is_other = np.ones(end - start, dtype=np.bool_)
    is_other[chosen - start] = False
    found = np.flatnonzero(is_other)
    found += start
    return found
