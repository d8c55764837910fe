"""The codec's loops in numpy: the reference, and what does the work where nothing is compiled."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from astraflow.weights.bands import KEYS, keys_of
from astraflow.weights.kernels.base import BandOrder, ByteArray, Changes, Coded, IndexArray, Table, WordArray
from astraflow.weights.kernels.reference_code import groups_of, listing_of, read_chosen, read_steps
from astraflow.weights.streams import Reader
from astraflow.weights.tensors import BitArray
from astraflow.weights.ulp import take_steps, zigzag_steps

_CHUNK = 2**17
"""Elements looked at before the next ones are fetched: what is made of them stays in the processor's cache, and in
memory that the process has already (large arrays are given back to the system, and cleared again, each time)."""

_WORD = np.dtype("<u8")
_ONES = np.uint64(2**64 - 1)


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

    def coded(self, bits: BitArray, first_keys: Sequence[int], changes: Changes) -> Coded:
        """See `Kernels`."""
        order = self.band_order(bits, first_keys)
        ranked = _by_rank(changes, order)
        bounds = np.searchsorted(ranked.at, order.starts)
        large = np.flatnonzero(ranked.extra != 0)
        return Coded(
            elements=np.diff(order.starts).tolist(),
            members=np.diff(bounds).tolist(),
            changed=listing_of(ranked.at, order.starts),
            large=listing_of(large, bounds),
            extras=groups_of(ranked.extra[large] - np.uint32(1), np.diff(np.searchsorted(large, bounds))),
            directions=np.packbits(ranked.is_up, bitorder="little").tobytes(),
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

    def apply(self, bits: BitArray, order: BandOrder, table: Table, sequences: memoryview) -> IndexArray:
        """See `Kernels`."""
        reader = Reader(sequences)
        ranks = read_chosen(reader, table.changed, order.starts)
        bounds = np.array([0, *accumulate(entry.members for entry in table.changed)])
        folded = read_steps(reader, bits.dtype, table, bounds)
        reader.end()
        at = _positions(order, ranks)
        bits[at] = take_steps(bits[at], folded)
        return np.sort(at) if len(order.words) else at


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


def _by_rank(changes: Changes, order: BandOrder) -> Changes:
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
