"""The codec's loops in numpy: the reference, and what does the work where nothing is compiled."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from astraflow.contract.errors import CorruptData
from astraflow.weights.bands import KEYS, keys_of
from astraflow.weights.kernels.base import (
    BandOrder,
    ByteArray,
    Changes,
    Gaps,
    IndexArray,
    RiceParts,
    ValueArray,
    WordArray,
)
from astraflow.weights.kernels.rice import COST, ESCAPE, MAX_VALUE, bit_lengths, sampled_every
from astraflow.weights.tensors import BitArray
from astraflow.weights.ulp import take_steps, zigzag_steps

_CHUNK = 2**17
"""Elements looked at before the next ones are fetched: what is made of them stays in the processor's cache, and in
memory that the process has already (large arrays are given back to the system, and cleared again, each time)."""

_WORD = np.dtype("<u8")
_EXCESS = np.dtype("<u4")
_ONES = np.uint64(2**64 - 1)
_NOTHING = np.zeros(0, dtype=np.uint8)


class ReferenceKernels:
    """`Kernels` out of numpy's operations on whole arrays."""

    def changes(self, old: BitArray, new: BitArray) -> Changes:
        """See `Kernels`."""
        at = _positions_in(_differing(old, new))
        before = old[at]
        folded = zigzag_steps(before, new[at])
        folded -= folded.dtype.type(1)
        return Changes(
            at=at,
            keys=keys_of(before),
            extra=np.right_shift(folded, folded.dtype.type(1)).astype(np.uint32),
            is_up=folded.astype(np.uint8) & np.uint8(1),
        )

    def band_order(self, bits: BitArray, first_keys: Sequence[int]) -> BandOrder:
        """See `Kernels`."""
        if len(first_keys) == 1:
            return plain_order(len(bits))
        words = _band_bitmaps(bits, first_keys)
        before = np.zeros(len(words) + 1, dtype=np.int32)
        np.cumsum(np.bitwise_count(words), dtype=np.int32, out=before[1:])
        starts = before[:: len(words) // len(first_keys)].astype(np.int64)
        return BandOrder(first_keys=first_keys, words=words, before=before, starts=starts)

    def by_rank(self, changes: Changes, order: BandOrder) -> Changes:
        """See `Kernels`."""
        if not len(order.words):
            return changes
        band = band_of_key(order.first_keys)[changes.keys]
        word = (changes.at >> 6) + band * np.int64(order.words_per_band)
        mask = (np.uint64(1) << (changes.at & 63).astype(np.uint64)) - np.uint64(1)
        ranks: IndexArray = np.bitwise_count(order.words[word] & mask).astype(np.int64)
        ranks += order.before[word]
        sequence = np.argsort(band, kind="stable")
        return Changes(
            at=ranks[sequence],
            keys=changes.keys[sequence],
            extra=changes.extra[sequence],
            is_up=changes.is_up[sequence],
        )

    def move(self, bits: BitArray, order: BandOrder, ranks: IndexArray, folded: BitArray) -> IndexArray:
        """See `Kernels`."""
        at = _positions(order, ranks)
        bits[at] = take_steps(bits[at], folded)
        return np.sort(at) if len(order.words) else at

    def gaps(self, chosen: IndexArray, starts: IndexArray) -> Gaps:
        """See `Kernels`."""
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
        return Gaps(is_inverted=is_inverted.tolist(), counts=counts, values=gaps.astype(np.uint32))

    def members(
        self, gaps: IndexArray, counts: Sequence[int], is_inverted: Sequence[bool], starts: IndexArray
    ) -> IndexArray:
        """See `Kernels`."""
        sizes = np.array(counts)
        chosen = gaps
        chosen += 1
        np.cumsum(chosen, out=chosen)
        ends = np.cumsum(sizes)
        before = np.concatenate([[0], chosen])[ends - sizes]
        chosen += np.repeat(starts[:-1] - 1 - before, sizes)
        is_used = sizes > 0
        if (chosen[ends[is_used] - 1] >= starts[1:][is_used]).any():
            raise CorruptData("a delta block lists an element beyond the end of its band")
        return _flipped(np.split(chosen, ends[:-1]), is_inverted, starts) if any(is_inverted) else chosen

    def rice_parts(self, values: ValueArray, counts: IndexArray) -> RiceParts:
        """See `Kernels`."""
        low_bits = _low_bits(values, counts)
        quotients = values >> np.repeat(np.array(low_bits, dtype=np.uint32), counts)
        excess = quotients[quotients >= ESCAPE] - np.uint32(ESCAPE)
        ends = np.cumsum(np.minimum(quotients, ESCAPE), dtype=np.int64)
        ends += np.arange(len(ends))
        unary = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, dtype=np.uint8)
        unary[ends] = 1
        return RiceParts(
            low_bits=low_bits,
            unary=_packed([unary]),
            remainders=_packed(_remainder_bits(values, counts, low_bits)),
            excesses=excess.astype(_EXCESS).tobytes(),
        )

    def quotients(self, unary: ByteArray, count: int) -> IndexArray:
        """See `Kernels`."""
        if int(np.bitwise_count(unary).sum(dtype=np.int64)) != count:
            raise CorruptData(f"a delta block's unary part does not hold {count} values")
        ends = np.flatnonzero(np.unpackbits(unary, bitorder="little").view(np.bool_))
        found = np.diff(ends, prepend=-1)
        found -= 1
        if found.max(initial=0) > ESCAPE:
            raise CorruptData("a delta block's unary part has a quotient beyond the escape")
        return found

    def add_remainders(
        self, values: IndexArray, remainders: ByteArray, counts: Sequence[int], low_bits: Sequence[int]
    ) -> None:
        """See `Kernels`."""
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


def plain_order(elements: int) -> BandOrder:
    """One band: ranks are positions."""
    return BandOrder(
        first_keys=(0,),
        words=np.zeros(0, dtype=_WORD),
        before=np.zeros(0, dtype=np.int32),
        starts=np.array([0, elements]),
    )


def band_of_key(first_keys: Sequence[int]) -> ByteArray:
    """The band of every key `[KEYS]`."""
    return np.repeat(np.arange(len(first_keys), dtype=np.uint8), np.diff([*first_keys, KEYS]))


def _differing(old: BitArray, new: BitArray) -> WordArray:
    """A bitmap of the elements that differ, in words of 64."""
    words = np.zeros(-(-len(old) // 64), dtype=_WORD)
    for start in range(0, len(old), _CHUNK):
        packed = np.packbits(old[start : start + _CHUNK] != new[start : start + _CHUNK], bitorder="little")
        words.view(np.uint8)[start // 8 : start // 8 + len(packed)] = packed
    return words


def _positions_in(words: WordArray) -> IndexArray:
    """Positions of the set bits of a bitmap, sorted.

    Numpy looks for one true element after the other when less than a tenth of them are true. Here words of 64 bits that
    have any are found first, then bytes, then bits, each among enough others to be found without branches.
    """
    if 10 * int(np.bitwise_count(words).sum(dtype=np.int64)) > 64 * len(words):
        return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little").view(np.bool_))
    word = np.flatnonzero(words != 0)
    octets = words[word].view(np.uint8)
    octet = np.flatnonzero(octets != 0)
    bit = np.flatnonzero(np.unpackbits(octets[octet], bitorder="little").view(np.bool_))
    start_of_octet = (word << 6)[octet >> 3]
    start_of_octet += (octet & 7) << 3
    found: IndexArray = start_of_octet[bit >> 3]
    found += bit & 7
    return found


def _band_bitmaps(bits: BitArray, first_keys: Sequence[int]) -> WordArray:
    """For each band, a bitmap of its elements in words of 64: `[bands * words]`."""
    below = np.zeros((len(first_keys) + 1, -(-len(bits) // 64)), dtype=_WORD)
    octets = below.view(np.uint8)
    for start in range(0, len(bits), _CHUNK):
        keys = keys_of(bits[start : start + _CHUNK])
        for row, first_key in enumerate(first_keys[1:], start=1):
            packed = np.packbits(keys < np.uint8(first_key), bitorder="little")
            octets[row, start // 8 : start // 8 + len(packed)] = packed
    below[-1] = _ONES
    if len(bits) % 64:
        below[-1, -1] >>= np.uint64(64 - len(bits) % 64)
    return (below[1:] ^ below[:-1]).reshape(-1)


def _positions(order: BandOrder, ranks: IndexArray) -> IndexArray:
    """Positions of sorted ranks, in the order given: sorted inside each band."""
    if not len(order.words):
        return ranks
    if len(ranks) > int(order.starts[-1]) // 16:
        return _all_positions(order)[ranks]
    word = np.searchsorted(order.before, ranks.astype(np.int32), side="right") - 1
    place = _place_of_bit(order.words[word], (ranks - order.before[word]).astype(np.uint8))
    word %= order.words_per_band
    word <<= 6
    word += place
    return word


def _all_positions(order: BandOrder) -> IndexArray:
    """Positions of all ranks."""
    bitmaps = order.words.view(np.uint8).reshape(len(order.first_keys), -1)
    found = np.empty(int(order.starts[-1]), dtype=np.int32)
    for band, bitmap in enumerate(bitmaps):
        members = np.unpackbits(bitmap, bitorder="little").view(np.bool_)
        found[order.starts[band] : order.starts[band + 1]] = np.flatnonzero(members)
    return found.astype(np.int64)


def _place_of_bit(words: WordArray, number: ByteArray) -> ByteArray:
    """Where in each word the bit stands before which `number` others are set."""
    place = np.zeros(len(words), dtype=np.uint8)
    for half in (32, 16, 8, 4, 2, 1):
        lower = np.bitwise_count(words & np.uint64((1 << half) - 1))
        is_above = number >= lower
        number = number - lower * is_above
        step = is_above * np.uint8(half)
        place += step
        words = words >> step
    return place


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


def _packed(bits: Iterable[npt.NDArray[np.uint8]]) -> bytes:
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
