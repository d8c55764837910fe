"""Compiled loops of the codec over the elements of a block.

Indices are not checked here: the callers have checked all external input. numba converts mixed signed and unsigned
integers to floats, so bits are unsigned (`U`) on both sides everywhere.
"""

import numpy as np

from astraflow.weights.codec.kernels.simd import compile_loop, mask_less_than, mask_not_equal, popcount, trailing_zeros

U = np.uint64
_ALL = np.uint64(2**64 - 1)
_WORDS = 64
"""Words compared at a time, so that elements read twice are still in the L1 cache."""


@compile_loop
def changes(old, new, width):
    """Returns columns of the differences: positions, keys, units beyond one, whether up."""
    positions = np.empty(len(old), dtype=np.int64)  # untouched memory costs nothing
    words = np.empty(_WORDS, dtype=np.uint64)
    count = 0
    for start in range(0, len(old), 64 * _WORDS):
        for word in range(differing(old, new, start, words)):
            remaining = words[word]
            while remaining:
                positions[count] = start + word * 64 + trailing_zeros(remaining)
                remaining &= remaining - U(1)
                count += 1
    at, keys = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.uint8)
    extra, is_up = np.empty(count, dtype=np.uint32), np.empty(count, dtype=np.uint8)
    top, spare = U(1) << U(8 * width - 1), np.int64(64 - 8 * width)
    for change in range(count):
        position = positions[change]
        before, after = U(old[position]), U(new[position])
        ordered_before = ~before if before & top else before ^ top
        ordered_after = ~after if after & top else after ^ top
        step = np.int64((ordered_after - ordered_before) << U(spare)) >> spare
        at[change] = position
        keys[change] = (before << U(1) if width == 1 else before >> U(8 * width - 9)) & U(255)
        extra[change] = (step if step > 0 else -step) - 1
        is_up[change] = step > 0
    return at, keys, extra, is_up


@compile_loop
def differing(old, new, start, words):
    """Fills words with a bit for each differing element from `start` on; returns the number of words."""
    used = 0
    at, end = start, min(len(old), start + 64 * len(words))
    while at + 64 <= end:
        words[used] = mask_not_equal(old, new, at)
        used += 1
        at += 64
    if at < end:
        words[used] = U(0)
        for offset in range(end - at):
            words[used] |= U(old[at + offset] != new[at + offset]) << U(offset)
        used += 1
    return used


@compile_loop
def bitmaps(bits, mask, limits):
    """Returns a bitmap for each band `[bands, words]`, and the number of elements before each word, and of all.

    limits: smallest magnitude of each band except the first, under `mask`.
    """
    bands, per_band, full = len(limits) + 1, (len(bits) + 63) // 64, len(bits) // 64
    words, before = np.empty((bands, per_band), dtype=np.uint64), np.empty(bands * per_band + 1, dtype=np.int32)
    for start in range(0, full, 128):
        end = min(start + 128, full)
        for word in range(start, end):
            words[bands - 1, word] = _ALL
        for band in range(bands - 1):
            for word in range(start, end):
                words[band, word] = mask_less_than(bits, word * 64, mask, limits[band])
        for band in range(bands - 1, 0, -1):
            for word in range(start, end):
                words[band, word] ^= words[band - 1, word]
    if full < per_band:
        for band in range(bands):
            words[band, full] = U(0)
        for at in range(full * 64, len(bits)):
            band = 0
            while band < bands - 1 and bits[at] & mask >= limits[band]:
                band += 1
            words[band, full] |= U(1) << U(at & 63)
    total = 0
    for band in range(bands):
        for word in range(per_band):
            before[band * per_band + word] = total
            total += popcount(words[band, word])
    before[bands * per_band] = total
    return words, before


@compile_loop
def by_rank(words, before, bands, at, keys, extra, is_up):
    """Returns columns of changes in rank order: ranks, units beyond one, whether up. bands: band of every key."""
    ranks, extra_to, is_up_to = np.empty_like(at), np.empty_like(extra), np.empty_like(is_up)
    next_of = np.zeros(257, dtype=np.int64)
    for change in range(len(at)):
        next_of[bands[keys[change]] + 1] += 1
    for band in range(256):
        next_of[band + 1] += next_of[band]
    for change in range(len(at)):
        band = np.int64(bands[keys[change]])
        to = next_of[band]
        next_of[band] += 1
        word = at[change] >> 6
        lower = (U(1) << U(at[change] & 63)) - U(1)
        ranks[to] = before[band * words.shape[1] + word] + popcount(words[band, word] & lower)
        extra_to[to] = extra[change]
        is_up_to[to] = is_up[change]
    return ranks, extra_to, is_up_to


@compile_loop
def positions_of(words, before, per_band, ranks):
    """Returns the positions of sorted ranks, in their order. words: bitmaps of all bands, one after the other."""
    positions = np.empty_like(ranks)
    at = 0
    for word in range(len(words)):
        end = before[word + 1]
        while at < len(ranks) and ranks[at] < end:
            positions[at] = word
            at += 1
    for at in range(len(ranks)):
        word = positions[at]
        positions[at] = (word % per_band) * 64 + _bit_before_which(words[word], ranks[at] - before[word])
    return positions


@compile_loop
def _bit_before_which(word, count):
    """Returns the index of the set bit that `count` set bits precede: six halvings without branches."""
    at = np.int64(0)
    for half, lower in ((32, U(2**32 - 1)), (16, U(2**16 - 1)), (8, U(255)), (4, U(15)), (2, U(3)), (1, U(1))):
        lower_ones = popcount(word & lower)
        is_above = np.int64(count >= lower_ones)
        count -= lower_ones * is_above
        word >>= U(is_above * half)
        at += is_above * half
    return at


@compile_loop
def move(bits, width, positions, extra, is_up):
    """Applies steps in place; returns the positions sorted. extra: units beyond one."""
    top = U(1) << U(8 * width - 1)
    is_moved = np.zeros((len(bits) + 63) // 64, dtype=np.uint64)
    for at in range(len(positions)):
        position = positions[at]
        is_moved[position >> 6] |= U(1) << U(position & 63)
        old, units = U(bits[position]), U(extra[at]) + U(1)
        ordered = ~old if old & top else old ^ top
        ordered = ordered + units if is_up[at] else ordered - units
        bits[position] = ordered ^ top if ordered & top else ~ordered
    sorted_positions = np.empty_like(positions)
    count = 0
    for word in range(len(is_moved)):
        remaining = is_moved[word]
        while remaining:
            sorted_positions[count] = word * 64 + trailing_zeros(remaining)
            remaining &= remaining - U(1)
            count += 1
    return sorted_positions
