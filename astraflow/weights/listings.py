"""Which members of each band are meant, said by the gaps between them: of those few, or of the few others."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.weights.kernels.base import IndexArray, Kernels, ValueArray
from astraflow.weights.kernels.rice import MAX_LOW_BITS
from astraflow.weights.streams import Reader, decode_rice, number, rice_sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Numbers band after band in Rice's code: how many each band has, and with how many low bits."""

    counts: Sequence[int]
    low_bits: Sequence[int]
    sequence: Sequence[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The members that are meant as gaps: how many are skipped before each."""

    is_inverted: Sequence[bool]
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


def groups_of(values: ValueArray, counts: IndexArray, *, kernels: Kernels) -> Groups:
    """Values in code. counts: of each band."""
    parts = kernels.rice_parts(values, counts)
    return Groups(counts=counts.tolist(), low_bits=parts.low_bits, sequence=rice_sequence(parts))


def listing_of(chosen: IndexArray, starts: IndexArray, *, kernels: Kernels) -> Listing:
    """How to say which members are meant. chosen: sorted; starts: of each band, and the end of the last."""
    gaps = kernels.gaps(chosen, starts)
    return Listing(is_inverted=gaps.is_inverted, gaps=groups_of(gaps.values, gaps.counts, kernels=kernels))


def read_entry(reader: Reader, *, size: int) -> Entry:
    """What the table says about a band of that size; about an empty one it says nothing. Raises: CorruptData."""
    listed, is_inverted = divmod(reader.number(most=2 * size + 1), 2) if size else (0, 0)
    low_bits = reader.number(most=MAX_LOW_BITS) if listed else 0
    members = size - listed if is_inverted else listed
    return Entry(listed=listed, is_inverted=bool(is_inverted), low_bits=low_bits, members=members)


def read_chosen(reader: Reader, entries: Sequence[Entry], starts: IndexArray, *, kernels: Kernels) -> IndexArray:
    """The members that are meant, sorted: the inverse of `listing_of`. Raises: CorruptData."""
    counts = [entry.listed for entry in entries]
    gaps = decode_rice(reader, counts, [entry.low_bits for entry in entries], kernels=kernels)
    return kernels.members(gaps, counts, [entry.is_inverted for entry in entries], starts)
