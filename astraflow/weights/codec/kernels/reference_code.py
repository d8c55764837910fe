"""Gaps, members and Rice code in numpy."""

from collections.abc import Iterable, Sequence

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.weights.codec.kernels.base import (
    COST,
    ESCAPE,
    MAX_VALUE,
    BandEntry,
    BandTable,
    ByteArray,
    IndexArray,
    MemberList,
    RiceGroups,
    ValueArray,
    bit_lengths,
    sampled_every,
)
from astraflow.weights.codec.payload_codec import PayloadReader, encode_varint
from astraflow.weights.tensors import BitArray

_EXCESS = np.dtype("<u4")
_EMPTY = np.zeros(0, dtype=np.uint8)


def encode_members(chosen: IndexArray, starts: IndexArray) -> MemberList:
    """Encodes the chosen members of each band, or the others if they are fewer.

    chosen: sorted members. starts: start of each band, then the end of the last band.
    """
    bounds = np.searchsorted(chosen, starts)
    counts, sizes = np.diff(bounds), np.diff(starts)
    is_inverted = 2 * counts > sizes
    if is_inverted.any():
        chosen = _invert_lists(np.split(chosen, bounds[1:-1]), is_inverted.tolist(), starts)
        counts = np.where(is_inverted, sizes - counts, counts)
    gaps = np.diff(chosen, prepend=-1)
    gaps -= 1
    is_used = counts > 0
    firsts = (np.cumsum(counts) - counts)[is_used]
    gaps[firsts] = chosen[firsts] - starts[:-1][is_used]
    return MemberList(is_inverted=is_inverted.tolist(), gaps=encode_rice(gaps.astype(np.uint32), counts))


def read_chosen(reader: PayloadReader, entries: Sequence[BandEntry], starts: IndexArray) -> IndexArray:
    """Returns the chosen members, sorted: the inverse of `encode_members`. Raises: CorruptData."""
    counts = np.array([entry.listed for entry in entries])
    chosen = decode_rice(reader, counts.tolist(), [entry.low_bits for entry in entries])
    chosen += 1
    np.cumsum(chosen, out=chosen)
    ends = np.cumsum(counts)
    before = np.concatenate([[0], chosen])[ends - counts]
    chosen += np.repeat(starts[:-1] - 1 - before, counts)
    is_used = counts > 0
    if (chosen[ends[is_used] - 1] >= starts[1:][is_used]).any():
        raise CorruptData(
            "cannot apply a delta block: it lists an element beyond the end of its band; fetch it again",
            code="weights.malformed_delta",
        )
    is_inverted = [entry.is_inverted for entry in entries]
    return _invert_lists(np.split(chosen, ends[:-1]), is_inverted, starts) if any(is_inverted) else chosen


def read_steps(
    reader: PayloadReader, dtype: np.dtype[np.unsignedinteger], table: BandTable, bounds: IndexArray
) -> BitArray:
    """Returns the folded steps of the changed elements, in rank order. bounds: band boundaries among them."""
    large_positions = read_chosen(reader, table.large, bounds)
    extras = decode_rice(reader, [entry.members for entry in table.large], table.low_bits)
    if extras.max(initial=0) >= 2 ** (8 * dtype.itemsize - 1) - 1:
        raise CorruptData(
            "cannot apply a delta block: it has a step larger than its elements; fetch it again",
            code="weights.malformed_delta",
        )
    count = int(bounds[-1])
    folded: BitArray = np.unpackbits(reader.read_bits(count), count=count, bitorder="little").astype(dtype)
    folded[large_positions] |= (extras + 1).astype(dtype) << dtype.type(1)
    folded += dtype.type(1)
    if not folded.all():  # a step up by half the range would be encoded as a step down, so it is invalid
        raise CorruptData(
            "cannot apply a delta block: it has a step larger than its elements; fetch it again",
            code="weights.malformed_delta",
        )
    return folded


def encode_rice(values: ValueArray, counts: IndexArray) -> RiceGroups:
    """Encodes groups of values, `counts` in each, with the low bits that make each group smallest."""
    low_bits = _low_bits(values, counts)
    quotients = values >> np.repeat(np.array(low_bits, dtype=np.uint32), counts)
    excess = quotients[quotients >= ESCAPE] - np.uint32(ESCAPE)
    ends = np.cumsum(np.minimum(quotients, ESCAPE), dtype=np.int64)
    ends += np.arange(len(ends))
    is_end = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, dtype=np.uint8)
    is_end[ends] = 1
    unary, remainders = _packed([is_end]), _packed(_remainder_bits(values, counts, low_bits))
    sequence = b"".join([encode_varint(len(unary)), unary, remainders, excess.astype(_EXCESS).tobytes()])
    return RiceGroups(counts=counts.tolist(), low_bits=low_bits, sequence=sequence)


def decode_rice(reader: PayloadReader, counts: Sequence[int], low_bits: Sequence[int]) -> IndexArray:
    """Returns the groups of values, one after another `[sum(counts)]`. Raises: CorruptData."""
    count = sum(counts)
    values = _quotients(reader, count)
    remainders = reader.read_bits(sum(n * k for n, k in zip(counts, low_bits, strict=True)))
    escaped = np.flatnonzero(values == ESCAPE)
    values[escaped] += reader.read_bytes(_EXCESS.itemsize * len(escaped)).view(_EXCESS)
    start = bit_offset = 0
    for size, bits in zip(counts, low_bits, strict=True):
        group = values[start : start + size]
        if group.max(initial=0) > MAX_VALUE >> bits:
            raise CorruptData(
                "cannot apply a delta block: it has a value of more than 32 bits; fetch it again",
                code="weights.malformed_delta",
            )
        group <<= bits
        for plane in range(bits):
            group |= _bits_from(remainders, bit_offset, size).astype(np.int64) << plane
            bit_offset += size
        start += size
    return values


def _quotients(reader: PayloadReader, count: int) -> IndexArray:
    unary = reader.read_bytes(reader.read_varint(max_value=(count * (ESCAPE + 1) + 7) // 8))
    if int(np.bitwise_count(unary).sum(dtype=np.int64)) != count:
        raise CorruptData(
            f"cannot apply a delta block: its unary part does not hold {count} values; fetch it again",
            code="weights.malformed_delta",
        )
    ends = np.flatnonzero(np.unpackbits(unary, bitorder="little").view(np.bool_))
    quotients = np.diff(ends, prepend=-1)
    quotients -= 1
    if quotients.max(initial=0) > ESCAPE or (len(unary) and not unary[-1]):
        raise CorruptData(
            "cannot apply a delta block: its unary part has a quotient beyond the escape, or unused bytes; fetch it "
            "again",
            code="weights.malformed_delta",
        )
    return quotients


def _invert_lists(pieces: Sequence[IndexArray], is_inverted: Sequence[bool], starts: IndexArray) -> IndexArray:
    """Returns the members of each band, sorted; inverted lists are replaced by their complement."""
    return np.concatenate(
        [
            _complement(piece, starts[band], starts[band + 1]) if is_inverted[band] else piece
            for band, piece in enumerate(pieces)
        ]
    )


def _complement(chosen: IndexArray, start: int, end: int) -> IndexArray:
    is_other = np.ones(end - start, dtype=np.bool_)
    is_other[chosen - start] = False
    others = np.flatnonzero(is_other)
    others += start
    return others


def _low_bits(values: ValueArray, counts: IndexArray) -> list[int]:
    """Returns, for each group of `counts` consecutive values, the low bits that make it smallest."""
    every = sampled_every(counts.tolist())
    lengths = bit_lengths(values[::every])
    groups = np.repeat(np.arange(len(counts)), counts)[::every]
    histogram = np.bincount(groups * 33 + lengths, minlength=33 * len(counts)).reshape(-1, 33)
    low_bits: list[int] = (histogram @ COST).argmin(axis=1).tolist()
    return low_bits


def _packed(bits: Iterable[ByteArray]) -> bytes:
    """Packs runs of bits, one byte (zero or not) per bit, into bytes."""
    return np.packbits(np.concatenate([_EMPTY, *bits]), bitorder="little").tobytes()


def _remainder_bits(values: ValueArray, counts: IndexArray, low_bits: Sequence[int]) -> Iterable[ByteArray]:
    """Yields, for each group, the lowest bit of all its values, then the next one."""
    ends = np.cumsum(counts)
    for end, size, bits in zip(ends.tolist(), counts.tolist(), low_bits, strict=True):
        for first in range(0, bits, 8):
            low_bytes = (values[end - size : end] >> np.uint32(first)).astype(np.uint8)
            for plane in range(min(8, bits - first)):
                yield low_bytes & np.uint8(1 << plane)


def _bits_from(packed: ByteArray, start: int, count: int) -> ByteArray:
    """Returns bits of a run from `start` on, each a byte of 0 or 1; unpacks only the bytes needed."""
    first, skipped = divmod(start, 8)
    return np.unpackbits(packed[first : (start + count + 7) // 8], bitorder="little")[skipped:][:count]
