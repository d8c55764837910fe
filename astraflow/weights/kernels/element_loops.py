"""The codec's loops over the elements of a block, compiled.

Nothing here checks an index: what comes from outside was checked before. numba makes floats of signed and unsigned
integers together, so bits are unsigned (`U`) on both sides everywhere.
"""

import numpy as np

from astraflow.weights.kernels.vectors import below, loop, lowest, ones, unequal

U = np.uint64
_ALL = np.uint64(2**64 - 1)


@loop
def differing(old, new, words):
    """Fill words with a bit for each element that differs; returns how many do."""
    total = 0
    full = len(old) // 64
    for word in range(full):
        words[word] = unequal(old, new, word * 64)
        total += ones(words[word])
    if full < len(words):
        found = U(0)
        for at in range(full * 64, len(old)):
            if old[at] != new[at]:
                found |= U(1) << U(at & 63)
        words[full] = found
        total += ones(found)
    return total


@loop
def changes(old, new, words, width, positions, keys, extra, is_up):
    """Fill columns with what each change that has its bit in `words` is."""
    top, spare = U(1) << U(8 * width - 1), np.int64(64 - 8 * width)
    count = 0
    for word in range(len(words)):
        left = words[word]
        while left:
            at = word * 64 + lowest(left)
            left &= left - U(1)
            before, after = U(old[at]), U(new[at])
            place_before = ~before if before & top else before ^ top
            place_after = ~after if after & top else after ^ top
            step = np.int64((place_after - place_before) << U(spare)) >> spare
            positions[count] = at
            keys[count] = (before << U(1) if width == 1 else before >> U(8 * width - 9)) & U(255)
            extra[count] = (step if step > 0 else -step) - 1
            is_up[count] = step > 0
            count += 1


@loop
def bitmaps(bits, mask, limits, words, before):
    """words: [bands, words per band]."""
    bands, per_band = words.shape
    full = len(bits) // 64
    for start in range(0, full, 128):
        end = min(start + 128, full)
        for word in range(start, end):
            words[bands - 1, word] = _ALL
        for band in range(bands - 1):
            for word in range(start, end):
                words[band, word] = below(bits, word * 64, mask, limits[band])
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
            total += ones(words[band, word])
    before[bands * per_band] = total


@loop
def sort(words, before, per_band, bands, at, keys, extra, is_up, ranks, keys_to, extra_to, is_up_to):
    """Bring changes into the order of their bands, with ranks. bands: of every key."""
    next_of = np.zeros(257, dtype=np.int64)
    for change in range(len(at)):
        next_of[bands[keys[change]] + 1] += 1
    for band in range(256):
        next_of[band + 1] += next_of[band]
    for change in range(len(at)):
        band = np.int64(bands[keys[change]])
        to = next_of[band]
        next_of[band] += 1
        word = (at[change] >> 6) + band * per_band
        lower = (U(1) << U(at[change] & 63)) - U(1)
        ranks[to] = before[word] + ones(words[word] & lower)
        keys_to[to] = keys[change]
        extra_to[to] = extra[change]
        is_up_to[to] = is_up[change]


@loop
def words_of(before, ranks, found):
    """Fill `found` with the word in which each sorted rank is."""
    at = 0
    for word in range(len(before) - 1):
        end = before[word + 1]
        while at < len(ranks) and ranks[at] < end:
            found[at] = word
            at += 1


@loop
def _bit_before_which(word, count):
    """Where the bit is set before which `count` others are: no branches, six halvings."""
    at = np.int64(0)
    for half, lower in ((32, U(2**32 - 1)), (16, U(2**16 - 1)), (8, U(255)), (4, U(15)), (2, U(3)), (1, U(1))):
        lower_ones = ones(word & lower)
        is_above = np.int64(count >= lower_ones)
        count -= lower_ones * is_above
        word >>= U(is_above * half)
        at += is_above * half
    return at


@loop
def positions(words, before, per_band, ranks, found):
    """Turn the words of ranks, in `found`, into positions."""
    for at in range(len(ranks)):
        word = found[at]
        found[at] = (word % per_band) * 64 + _bit_before_which(words[word], ranks[at] - before[word])


@loop
def move(bits, width, positions, folded, is_moved):
    """Take steps in place; `is_moved` gets a bit for each position."""
    top = U(1) << U(8 * width - 1)
    for at in range(len(positions)):
        position = positions[at]
        is_moved[position >> 6] |= U(1) << U(position & 63)
        old, code = U(bits[position]), U(folded[at])
        place = ~old if old & top else old ^ top
        place += (code >> U(1)) ^ (U(0) - (code & U(1)))
        bits[position] = place ^ top if place & top else ~place


@loop
def set_bits(words, found):
    """Fill `found` with the positions of set bits."""
    count = 0
    for word in range(len(words)):
        left = words[word]
        while left:
            found[count] = word * 64 + lowest(left)
            left &= left - U(1)
            count += 1
