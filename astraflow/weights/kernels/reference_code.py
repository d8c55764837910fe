"""Gaps, members and Rice's code in numpy."""

from collections.abc import Iterable, Sequence

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.weights.kernels.base import ByteArray, Entry, Groups, IndexArray, Listing, Table, ValueArray
from astraflow.weights.kernels.rice import COST, ESCAPE, MAX_VALUE, bit_lengths, sampled_every
from astraflow.weights.streams import Reader, number
from astraflow.weights.tensors import BitArray

_EXCESS = np.dtype("<u4")
_NOTHING = np.zeros(0, dtype=np.uint8)


def listing_of(chosen: IndexArray, starts: IndexArray) -> Listing:
    """The shorter way to say which members are meant. chosen: sorted; starts: of bands, and the end of the last."""
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


def read_steps(reader: Reader, dtype: np.dtype[np.unsignedinteger], table: Table, bounds: IndexArray) -> BitArray:
    """The folded steps of the changed elements, in order of their ranks. bounds: of bands among them."""
    at = read_chosen(reader, table.large, bounds)
    extras = decode_rice(reader, [entry.members for entry in table.large], table.low_bits)
    if extras.max(initial=0) >= 2 ** (8 * dtype.itemsize - 1) - 1:
        raise CorruptData("a delta block has a step larger than its elements")
    count = int(bounds[-1])
    folded: BitArray = np.unpackbits(reader.bits(count), count=count, bitorder="little").astype(dtype)
    folded[at] |= (extras + 1).astype(dtype) << dtype.type(1)
    folded += dtype.type(1)
    if (
        not folded.all()
    ):  # half the range of the elements, upwards: it is told as a step downwards, and does not fit here
        raise CorruptData("a delta block has a step larger than its elements")
    return folded


def groups_of(values: ValueArray, counts: IndexArray) -> Groups:
    """Groups of values, as many in each as `counts` says, with the low bits that make it smallest."""
    low_bits = _low_bits(values, counts)
    quotients = values >> np.repeat(np.array(low_bits, dtype=np.uint32), counts)
    excess = quotients[quotients >= ESCAPE] - np.uint32(ESCAPE)
    ends = np.cumsum(np.minimum(quotients, ESCAPE), dtype=np.int64)
    ends += np.arange(len(ends))
    is_end = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, dtype=np.uint8)
    is_end[ends] = 1
    unary, remainders = _packed([is_end]), _packed(_remainder_bits(values, counts, low_bits))
    sequence = b"".join([number(len(unary)), unary, remainders, excess.astype(_EXCESS).tobytes()])
    return Groups(counts=counts.tolist(), low_bits=low_bits, sequence=sequence)


def decode_rice(reader: Reader, counts: Sequence[int], low_bits: Sequence[int]) -> IndexArray:
    """The groups of values, one after another `[sum(counts)]`. Raises: CorruptData."""
    count = sum(counts)
    values = _quotients(reader, count)
    remainders = reader.bits(sum(n * k for n, k in zip(counts, low_bits, strict=True)))
    escaped = np.flatnonzero(values == ESCAPE)
    values[escaped] += reader.take(_EXCESS.itemsize * len(escaped)).view(_EXCESS)
    start = at = 0
    for size, bits in zip(counts, low_bits, strict=True):
        group = values[start : start + size]
        if group.max(initial=0) > MAX_VALUE >> bits:
            raise CorruptData("a delta block has a value of more than 32 bits")
        group <<= bits
        for place in range(bits):
            group |= _bits_from(remainders, at, size).astype(np.int64) << place
            at += size
        start += size
    return values


def _quotients(reader: Reader, count: int) -> IndexArray:
    unary = reader.take(reader.number(most=(count * (ESCAPE + 1) + 7) // 8))
    if int(np.bitwise_count(unary).sum(dtype=np.int64)) != count:
        raise CorruptData(f"a delta block's unary part does not hold {count} values")
    ends = np.flatnonzero(np.unpackbits(unary, bitorder="little").view(np.bool_))
    found = np.diff(ends, prepend=-1)
    found -= 1
    if found.max(initial=0) > ESCAPE or (len(unary) and not unary[-1]):
        raise CorruptData("a delta block's unary part has a quotient beyond the escape, or an end without use")
    return found


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


def _low_bits(values: ValueArray, counts: IndexArray) -> list[int]:
    """For each group of values, as many as `counts` says one after another, the low bits that make it smallest."""
    every = sampled_every(counts.tolist())
    lengths = bit_lengths(values[::every])
    groups = np.repeat(np.arange(len(counts)), counts)[::every]
    histogram = np.bincount(groups * 33 + lengths, minlength=33 * len(counts)).reshape(-1, 33)
    found: list[int] = (histogram @ COST).argmin(axis=1).tolist()
    return found


def _packed(bits: Iterable[ByteArray]) -> bytes:
    """Runs of bits, each a byte, 0 or not, as bytes."""
    return np.packbits(np.concatenate([_NOTHING, *bits]), bitorder="little").tobytes()


def _remainder_bits(values: ValueArray, counts: IndexArray, low_bits: Sequence[int]) -> Iterable[ByteArray]:
    """Of each group, the lowest bit of all its values, then the next one."""
    ends = np.cumsum(counts)
    for end, size, bits in zip(ends.tolist(), counts.tolist(), low_bits, strict=True):
        for first in range(0, bits, 8):
            octets = (values[end - size : end] >> np.uint32(first)).astype(np.uint8)
            for place in range(min(8, bits - first)):
                yield octets & np.uint8(1 << place)


def _bits_from(packed: ByteArray, start: int, count: int) -> ByteArray:
    """Bits of a run from one on, each a byte of 0 or 1; no more of it is unpacked than is looked at."""
    first, skipped = divmod(start, 8)
    return np.unpackbits(packed[first : (start + count + 7) // 8], bitorder="little")[skipped:][:count]
