"""Loops of the codec in numpy: the reference, used where nothing is compiled."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from astraflow.weights.codec.bands import KEYS, keys_of
from astraflow.weights.codec.kernels.base import (
    BandOrder,
    BandTable,
    ByteArray,
    Changes,
    EncodedChanges,
    IndexArray,
    WordArray,
)
from astraflow.weights.codec.kernels.reference_code import encode_members, encode_rice, read_chosen, read_steps
from astraflow.weights.codec.payload_codec import PayloadReader
from astraflow.weights.tensors import BitArray

_CHUNK = 2**17
"""Elements processed at a time, so that intermediate arrays stay in the processor's cache and in memory that the
process already has (large arrays are returned to the system, and cleared again, each time)."""

_WORD = np.dtype("<u8")
_ONES = np.uint64(2**64 - 1)


class ReferenceKernels:
    """`Kernels` as numpy operations on whole arrays."""

    def find_changes(self, old: BitArray, new: BitArray) -> Changes:
        """Implements `Kernels.find_changes`."""
        at = _positions_in(_differing(old, new))
        before = old[at]
        folded = zigzag_steps(before, new[at])
        folded -= folded.dtype.type(1)
        return Changes(
            positions=at,
            keys=keys_of(before),
            extra_units=np.right_shift(folded, folded.dtype.type(1)).astype(np.uint32),
            is_up=folded.astype(np.uint8) & np.uint8(1),
        )

    def encode_changes(self, bits: BitArray, first_keys: Sequence[int], changes: Changes) -> EncodedChanges:
        """Implements `Kernels.encode_changes`."""
        order = self.band_order(bits, first_keys)
        ranked = _by_rank(changes, order)
        bounds = np.searchsorted(ranked.positions, order.starts)
        large = np.flatnonzero(ranked.extra_units != 0)
        return EncodedChanges(
            elements=np.diff(order.starts).tolist(),
            members=np.diff(bounds).tolist(),
            changed=encode_members(ranked.positions, order.starts),
            large=encode_members(large, bounds),
            extras=encode_rice(ranked.extra_units[large] - np.uint32(1), np.diff(np.searchsorted(large, bounds))),
            directions=np.packbits(ranked.is_up, bitorder="little").tobytes(),
        )

    def band_order(self, bits: BitArray, first_keys: Sequence[int]) -> BandOrder:
        """Implements `Kernels.band_order`."""
        if len(first_keys) == 1:
            return plain_order(len(bits))
        words = _band_bitmaps(bits, first_keys)
        before = np.zeros(len(words) + 1, dtype=np.int32)
        np.cumsum(np.bitwise_count(words), dtype=np.int32, out=before[1:])
        starts = before[:: len(words) // len(first_keys)].astype(np.int64)
        return BandOrder(first_keys=first_keys, words=words, cumulative_counts=before, starts=starts)

    def apply(self, bits: BitArray, order: BandOrder, table: BandTable, sequences: memoryview) -> IndexArray:
        """Implements `Kernels.apply`."""
        reader = PayloadReader(sequences)
        ranks = read_chosen(reader, table.changed, order.starts)
        bounds = np.array([0, *accumulate(entry.members for entry in table.changed)])
        folded = read_steps(reader, bits.dtype, table, bounds)
        reader.check_exhausted()
        at = _positions(order, ranks)
        bits[at] = apply_zigzag_steps(bits[at], folded)
        return np.sort(at) if len(order.words) else at


def plain_order(elements: int) -> BandOrder:
    """Returns the order of a single band, in which ranks are positions."""
    return BandOrder(
        first_keys=(0,),
        words=np.zeros(0, dtype=_WORD),
        cumulative_counts=np.zeros(0, dtype=np.int32),
        starts=np.array([0, elements]),
    )


def band_of_key(first_keys: Sequence[int]) -> ByteArray:
    """Returns the band of every key `[KEYS]`."""
    return np.repeat(np.arange(len(first_keys), dtype=np.uint8), np.diff([*first_keys, KEYS]))


def _by_rank(changes: Changes, order: BandOrder) -> Changes:
    if not len(order.words):
        return changes
    band = band_of_key(order.first_keys)[changes.keys]
    word = (changes.positions >> 6) + band * np.int64(order.words_per_band)
    mask = (np.uint64(1) << (changes.positions & 63).astype(np.uint64)) - np.uint64(1)
    ranks: IndexArray = np.bitwise_count(order.words[word] & mask).astype(np.int64)
    ranks += order.cumulative_counts[word]
    sequence = np.argsort(band, kind="stable")
    return Changes(
        positions=ranks[sequence],
        keys=changes.keys[sequence],
        extra_units=changes.extra_units[sequence],
        is_up=changes.is_up[sequence],
    )


def _differing(old: BitArray, new: BitArray) -> WordArray:
    """Returns a bitmap of the differing elements, in words of 64."""
    words = np.zeros(-(-len(old) // 64), dtype=_WORD)
    for start in range(0, len(old), _CHUNK):
        packed = np.packbits(old[start : start + _CHUNK] != new[start : start + _CHUNK], bitorder="little")
        words.view(np.uint8)[start // 8 : start // 8 + len(packed)] = packed
    return words


def _positions_in(words: WordArray) -> IndexArray:
    """Returns the positions of the set bits of a bitmap, sorted.

    When less than a tenth are true, numpy searches true elements one by one. Here words of 64 bits with any set bit are
    found first, then bytes, then bits, each dense enough to be found without branches.
    """
    if 10 * int(np.bitwise_count(words).sum(dtype=np.int64)) > 64 * len(words):
        return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little").view(np.bool_))
    word = np.flatnonzero(words != 0)
    octets = words[word].view(np.uint8)
    octet = np.flatnonzero(octets != 0)
    bit = np.flatnonzero(np.unpackbits(octets[octet], bitorder="little").view(np.bool_))
    start_of_octet = (word << 6)[octet >> 3]
    start_of_octet += (octet & 7) << 3
    positions: IndexArray = start_of_octet[bit >> 3]
    positions += bit & 7
    return positions


def _band_bitmaps(bits: BitArray, first_keys: Sequence[int]) -> WordArray:
    """Returns a bitmap of each band's elements in words of 64: `[bands * words]`."""
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
    """Returns the positions of sorted ranks, in the given order: sorted within each band."""
    if not len(order.words):
        return ranks
    if len(ranks) > int(order.starts[-1]) // 16:
        return _all_positions(order)[ranks]
    word = np.searchsorted(order.cumulative_counts, ranks.astype(np.int32), side="right") - 1
    offset = _bit_index(order.words[word], (ranks - order.cumulative_counts[word]).astype(np.uint8))
    word %= order.words_per_band
    word <<= 6
    word += offset
    return word


def _all_positions(order: BandOrder) -> IndexArray:
    bitmaps = order.words.view(np.uint8).reshape(len(order.first_keys), -1)
    positions = np.empty(int(order.starts[-1]), dtype=np.int32)
    for band, bitmap in enumerate(bitmaps):
        members = np.unpackbits(bitmap, bitorder="little").view(np.bool_)
        positions[order.starts[band] : order.starts[band + 1]] = np.flatnonzero(members)
    return positions.astype(np.int64)


def _bit_index(words: WordArray, number: ByteArray) -> ByteArray:
    """Returns the index in each word of the set bit that `number` set bits precede."""
    index = np.zeros(len(words), dtype=np.uint8)
    for half in (32, 16, 8, 4, 2, 1):
        lower = np.bitwise_count(words & np.uint64((1 << half) - 1))
        is_above = number >= lower
        number = number - lower * is_above
        step = is_above * np.uint8(half)
        index += step
        words = words >> step
    return index


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
