"""Bands: stretches of magnitudes whose elements change alike, and the order of a block's elements by band.

An optimizer's step is of one size whatever the weight; a unit in the last place is not. So how likely an element is to
change, and by how many units, follows from the exponent of its old value, which whoever has the base knows. The *key*
of an element is the eight bits below its sign: the exponent of float32 and bfloat16; the exponent and the first bits of
the fraction of narrower types. A *band* is a range of keys.

Sorted by band, and inside a band as they stand in the block, elements have *ranks*. A `BandOrder` leads from positions
to ranks and back by counting bits in one bitmap for each band.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from astraflow.weights.streams import bit_lengths
from astraflow.weights.tensors import BitArray

KEYS = 256
MAX_BANDS = 32
BAND_COST_BITS = 64
"""About what a band takes in the table of a block: one more must save that."""
_STRETCH, _SAMPLED = 32, 256
"""Elements counted at a time, and one stretch in how many, to know how many have which key."""

_SAMPLED_CHANGES = 4096
_CHUNK = 2**17
"""Elements looked at before the next ones are fetched: what is made of them stays in the processor's cache, and in
memory that the process has already (large arrays are given back to the system, and cleared again, each time)."""

_WORD = np.dtype("<u8")
_ONES = np.uint64(2**64 - 1)

IndexArray = npt.NDArray[np.int64]


def keys_of(bits: BitArray) -> npt.NDArray[np.uint8]:
    """The eight bits below the sign; of one-byte types, the seven there are and a zero.

    >>> keys_of(np.array([0x3F80, 0xBF80], dtype="<u2")).tolist()
    [127, 127]
    """
    width: int = bits.dtype.itemsize
    if width == 1:
        return np.left_shift(bits, np.uint8(1)).astype(np.uint8, copy=False)
    return np.right_shift(bits, bits.dtype.type(8 * width - 9)).astype(np.uint8)


def differing(old: BitArray, new: BitArray) -> npt.NDArray[np.uint64]:
    """A bitmap of the elements that differ, in words of 64."""
    words = np.zeros(-(-len(old) // 64), dtype=_WORD)
    for start in range(0, len(old), _CHUNK):
        packed = np.packbits(old[start : start + _CHUNK] != new[start : start + _CHUNK], bitorder="little")
        words.view(np.uint8)[start // 8 : start // 8 + len(packed)] = packed
    return words


def positions_in(words: npt.NDArray[np.uint64]) -> IndexArray:
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


class BandOrder:
    """The elements of one block sorted by band: ranks of positions, and positions of ranks."""

    def __init__(self, bits: BitArray, first_keys: Sequence[int]) -> None:
        """first_keys: of each band, ascending from 0; the last band reaches to the highest key."""
        self._elements = len(bits)
        self._words_per_band = -(-self._elements // 64)
        self._is_plain = len(first_keys) == 1
        if self._is_plain:
            self.starts: IndexArray = np.array([0, self._elements])
            return
        self._words = _band_bitmaps(bits, first_keys)
        before = np.zeros(len(self._words) + 1, dtype=np.int32)
        np.cumsum(np.bitwise_count(self._words), dtype=np.int32, out=before[1:])
        self._before = before
        """Elements in all words before one: the rank at which it starts."""
        self.starts = before[:: self._words_per_band].astype(np.int64)
        """Ranks at which bands start, and the number of elements."""

    def ranks(self, positions: IndexArray, bands: npt.NDArray[np.uint8]) -> IndexArray:
        """Ranks of elements whose bands are known, in the order given."""
        if self._is_plain:
            return positions
        word = (positions >> 6) + bands * np.int64(self._words_per_band)
        mask = (np.uint64(1) << (positions & 63).astype(np.uint64)) - np.uint64(1)
        found: IndexArray = np.bitwise_count(self._words[word] & mask).astype(np.int64)
        found += self._before[word]  # ranks before the word
        return found

    def positions(self, ranks: IndexArray) -> IndexArray:
        """Positions of sorted ranks, in the order given: sorted inside each band."""
        if self._is_plain:
            return ranks
        if len(ranks) > self._elements // 16:
            return self._all_positions()[ranks]
        word = np.searchsorted(self._before, ranks.astype(np.int32), side="right") - 1
        place = _place_of_bit(self._words[word], (ranks - self._before[word]).astype(np.uint8))
        word %= self._words_per_band
        word <<= 6
        word += place
        return word

    def _all_positions(self) -> IndexArray:
        """Positions of all ranks."""
        bitmaps = self._words.view(np.uint8).reshape(len(self.starts) - 1, -1)
        found = np.empty(self._elements, dtype=np.int32)
        for band, bitmap in enumerate(bitmaps):
            members = np.unpackbits(bitmap, bitorder="little").view(np.bool_)
            found[self.starts[band] : self.starts[band + 1]] = np.flatnonzero(members)
        return found.astype(np.int64)


def choose_bands(bits: BitArray, changed: BitArray, extra: npt.NDArray[np.uint32], *, limit: int) -> list[int]:
    """First keys of at most `limit` bands, chosen so that what happens to an element follows best from its band.

    bits: the block before. changed, extra: the elements of it that change, and by how many units more than one. The
    block is split where that saves most bits, until no split saves what another band costs. All from samples.
    """
    counts = _counts(bits, changed, extra)
    used = np.flatnonzero(counts.any(axis=1))
    sums = np.zeros((len(used) + 1, counts.shape[1]))
    np.cumsum(counts[used], axis=0, out=sums[1:])
    cuts = [0, len(used)]
    splits: list[tuple[float, int]] = []
    fresh = [0]
    while len(cuts) <= limit:
        splits += [_best_split(sums, start, cuts[cuts.index(start) + 1]) for start in fresh]
        saved, middle = max(splits, default=(0.0, 0))
        if saved < BAND_COST_BITS:
            break
        splits.remove((saved, middle))
        start = max(cut for cut in cuts if cut < middle)
        cuts = sorted([*cuts, middle])
        fresh = [start, middle]
    return [0, *(int(used[cut]) for cut in cuts[1:-1])]


def _counts(bits: BitArray, changed: BitArray, extra: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    """About how many elements of each key did what: stayed, or moved by that many binary digits `[KEYS, outcomes]`."""
    every = max(1, len(changed) // _SAMPLED_CHANGES)
    digits = bit_lengths(extra[::every])
    width = int(digits.max()) + 1
    outcomes = keys_of(changed[::every]) * np.int64(width) + digits
    moved = np.bincount(outcomes, minlength=KEYS * width).reshape(KEYS, width) * (len(changed) / len(digits))
    sample = _sample(bits)
    everything = np.bincount(keys_of(sample), minlength=KEYS) * (len(bits) / len(sample))
    stayed = np.maximum(everything - moved.sum(axis=1), 0)
    return np.concatenate([stayed[:, None], moved], axis=1)


def _sample(bits: BitArray) -> BitArray:
    """Short stretches from all over the block."""
    rows = len(bits) // (_SAMPLED * _STRETCH)
    return bits[: rows * _SAMPLED * _STRETCH].reshape(rows, -1)[:, :_STRETCH].reshape(-1) if rows else bits


def _best_split(sums: npt.NDArray[np.float64], start: int, end: int) -> tuple[float, int]:
    """Bits saved by the best cut between the keys `start` and `end`, and the cut."""
    if end - start < 2:
        return 0.0, start
    low = sums[start + 1 : end] - sums[start]
    high = sums[end] - sums[start + 1 : end]
    whole = sums[end] - sums[start]
    saved = _information(whole[None])[0] - _information(low) - _information(high)
    best = int(np.argmax(saved))
    return float(saved[best]), start + 1 + best


def _information(counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Bits that tell what each of `[rows, outcomes]` elements did, if each outcome is coded by its frequency."""
    total = counts.sum(axis=1)
    found: npt.NDArray[np.float64] = total * np.log2(np.maximum(total, 1))
    found -= (counts * np.log2(np.maximum(counts, 1))).sum(axis=1)
    return found


def _band_bitmaps(bits: BitArray, first_keys: Sequence[int]) -> npt.NDArray[np.uint64]:
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


def _place_of_bit(words: npt.NDArray[np.uint64], number: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
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
