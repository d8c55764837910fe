"""Compiled loops of the codec that write gaps and values in Rice code.

Indices are not checked here: the callers have checked all external input. numba converts mixed signed and unsigned
integers to floats, so bits are unsigned (`U`) on both sides everywhere.
"""

import numpy as np

from astraflow.weights.codec.kernels.base import ESCAPE, SAMPLED_VALUES
from astraflow.weights.codec.kernels.element_loops import bitmaps, by_rank
from astraflow.weights.codec.kernels.simd import bit_length, compile_loop, mask_less_than

U = np.uint64


@compile_loop
def encode(bits, mask, limits, bands, cost, at, keys, extra, is_up):
    """Returns the fields of `EncodedChanges`. bands: band of every key; at, keys, extra, is_up: changes by position."""
    starts = np.zeros(len(limits) + 2, dtype=np.int64)
    if len(limits):
        words, before = bitmaps(bits, mask, limits)
        at, extra, is_up = by_rank(words, before, bands, at, keys, extra, is_up)
        for band in range(len(limits) + 1):
            starts[band + 1] = before[(band + 1) * words.shape[1]]
    else:
        starts[1] = len(bits)
    large, extras = _large(extra)
    bounds = _bounds(at, starts)
    return (
        _sizes(starts),
        _sizes(bounds),
        _listing(at, starts, cost),
        _listing(large, bounds, cost),
        _groups(extras, _sizes(_bounds(large, bounds)), cost),
        _packed(is_up),
    )


@compile_loop
def _large(extra):
    """Returns the indices of steps of more than one unit, and their units beyond two."""
    count = 0
    for at in range(len(extra)):
        count += extra[at] != 0
    large, extras = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.uint32)
    to = 0
    for at in range(len(extra)):
        if extra[at]:
            large[to] = at
            extras[to] = extra[at] - 1
            to += 1
    return large, extras


@compile_loop
def _bounds(chosen, starts):
    """Returns the number of chosen members before each start."""
    bounds = np.empty_like(starts)
    at = 0
    for band in range(len(starts)):
        while at < len(chosen) and chosen[at] < starts[band]:
            at += 1
        bounds[band] = at
    return bounds


@compile_loop
def _sizes(starts):
    sizes = np.empty(len(starts) - 1, dtype=np.int64)
    for band in range(len(sizes)):
        sizes[band] = starts[band + 1] - starts[band]
    return sizes


@compile_loop
def _packed(flags):
    """Packs flags of 0 or 1 into the bits of bytes."""
    packed = np.zeros((len(flags) + 7) // 8, dtype=np.uint8)
    for at in range(len(flags)):
        packed[at >> 3] |= flags[at] << (at & 7)
    return packed


@compile_loop
def _listing(chosen, starts, cost):
    """Returns the fields of `MemberList`: inversions, and gaps as groups."""
    members, sizes = _sizes(_bounds(chosen, starts)), _sizes(starts)
    counts, is_inverted = np.empty_like(sizes), np.empty(len(sizes), dtype=np.bool_)
    total = 0
    for band in range(len(sizes)):
        is_inverted[band] = 2 * members[band] > sizes[band]
        counts[band] = sizes[band] - members[band] if is_inverted[band] else members[band]
        total += counts[band]
    gaps = np.empty(total, dtype=np.uint32)
    at = to = 0
    for band in range(len(counts)):
        before, end = starts[band] - 1, starts[band + 1]
        if not is_inverted[band]:
            while at < len(chosen) and chosen[at] < end:
                gaps[to] = chosen[at] - before - 1
                before = chosen[at]
                at += 1
                to += 1
            continue
        for member in range(starts[band], end):
            if at < len(chosen) and chosen[at] == member:
                at += 1
            else:
                gaps[to] = member - before - 1
                before = member
                to += 1
    return is_inverted, _groups(gaps, counts, cost)


@compile_loop
def _groups(values, counts, cost):
    """Returns counts and low bits of groups, unary part and remainders as words with their bit lengths, and
    excesses."""
    low_bits = _low_bits(values, counts, cost)
    unary_bits, remainder_bits, excess_count = _lengths(values, counts, low_bits)
    unary = np.zeros((unary_bits + 63) // 64 + 1, dtype=np.uint64)
    remainders = np.zeros((remainder_bits + 63) // 64 + 1, dtype=np.uint64)
    excesses = np.empty(excess_count, dtype=np.uint32)
    _write(values, counts, low_bits, unary, remainders, excesses)
    return counts, low_bits, unary, unary_bits, remainders, remainder_bits, excesses


@compile_loop
def _low_bits(values, counts, cost):
    """Returns the low bits that make a sample of each group smallest."""
    fewest_values = len(values)
    for group in range(len(counts)):
        if counts[group]:
            fewest_values = min(fewest_values, counts[group])
    every = max(1, fewest_values // SAMPLED_VALUES)
    chosen = np.empty_like(counts)
    histogram = np.zeros(33, dtype=np.int64)
    start = 0
    for group in range(len(counts)):
        end = start + counts[group]
        for length in range(33):
            histogram[length] = 0
        for at in range((start + every - 1) // every * every, end, every):
            histogram[bit_length(U(values[at]))] += 1
        best, fewest = 0, np.int64(2**62)
        for bits in range(cost.shape[1]):
            total = 0
            for length in range(33):
                total += histogram[length] * cost[length, bits]
            if total < fewest:
                best, fewest = bits, total
        chosen[group] = best
        start = end
    return chosen


@compile_loop
def _lengths(values, counts, low_bits):
    """Returns the bits of the unary part and of the remainders, and the number of values with an excess."""
    unary = remainders = excesses = at = 0
    for group in range(len(counts)):
        shift = U(low_bits[group])
        remainders += counts[group] * low_bits[group]
        for _ in range(counts[group]):
            quotient = np.int64(U(values[at]) >> shift)
            unary += min(quotient, ESCAPE) + 1
            excesses += quotient >= ESCAPE
            at += 1
    return unary, remainders, excesses


@compile_loop
def _write(values, counts, low_bits, unary, remainders, excesses):
    """Writes the parts. unary, remainders: words, cleared, with one more than their bits need."""
    bit = plane_bit = start = escaped = 0
    for group in range(len(counts)):
        shift, count = U(low_bits[group]), counts[group]
        for at in range(start, start + count):
            quotient = np.int64(U(values[at]) >> shift)
            if quotient >= ESCAPE:
                excesses[escaped] = quotient - ESCAPE
                escaped += 1
                quotient = ESCAPE
            bit += quotient
            unary[bit >> 6] |= U(1) << U(bit & 63)
            bit += 1
        for plane in range(low_bits[group]):
            at = start
            while at < start + count:
                size = min(64, start + count - at)
                if size == 64:
                    word = ~mask_less_than(values, at, np.uint32(1 << plane), np.uint32(1))
                else:
                    word = U(0)
                    for offset in range(size):
                        word |= (U(values[at + offset]) >> U(plane) & U(1)) << U(offset)
                remainders[plane_bit >> 6] |= word << U(plane_bit & 63)
                if plane_bit & 63:
                    remainders[(plane_bit >> 6) + 1] |= word >> U(64 - (plane_bit & 63))
                at += size
                plane_bit += size
        start += count
