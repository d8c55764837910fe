"""The codec's loops that read gaps and values in Rice's code, compiled.

What they read may be damaged or a lie: sizes are checked before anything is allocated or looked at. numba makes floats
of signed and unsigned integers together, so bits are unsigned (`U`) on both sides everywhere.
"""

import numpy as np

from astraflow.weights.kernels.element_loops import move, positions_of
from astraflow.weights.kernels.rice import ESCAPE, MAX_VALUE
from astraflow.weights.kernels.vectors import loop, lowest, ones

U = np.uint64


@loop
def apply(bits, width, words, before, starts, data, changed, large, extra_counts, extra_low_bits):
    """Take the steps of a block in place; returns sorted positions. Raises: ValueError.

    changed, large: listed, inverted, low bits, members; arrays with an item for each band.
    """
    ranks, at = _chosen(data, np.int64(0), changed, starts)
    bounds = np.zeros_like(starts)
    for band in range(len(starts) - 1):
        bounds[band + 1] = bounds[band] + changed[3][band]
    large_at, at = _chosen(data, at, large, bounds)
    extras, at = _values(data, at, extra_counts, extra_low_bits)
    for extra in extras:
        if extra >= (1 << (8 * width - 1)) - 1:
            raise ValueError("a delta block has a step larger than its elements")
    count = len(ranks)
    end = _end_of_bits(data, at, count)
    if end != len(data):
        raise ValueError("something follows what a delta block should hold")
    extra, is_up = np.zeros(count, dtype=np.uint32), np.empty(count, dtype=np.uint8)
    for place in range(len(large_at)):
        extra[large_at[place]] = extras[place] + 1
    for place in range(count):
        is_up[place] = data[at + (place >> 3)] >> (place & 7) & 1
        if is_up[place] and extra[place] >= (1 << (8 * width - 1)) - 1:
            raise ValueError("a delta block has a step larger than its elements")
    if len(words):
        return move(bits, width, positions_of(words, before, len(words) // len(extra_counts), ranks), extra, is_up)
    return move(bits, width, ranks, extra, is_up)


@loop
def _chosen(data, at, table, starts):
    """The members that are meant, sorted, and where what follows begins."""
    counts, is_inverted, low_bits, members = table
    listed, at = _values(data, at, counts, low_bits)
    place = 0
    for band in range(len(counts)):
        member = starts[band] - 1
        for _ in range(counts[band]):
            member += listed[place] + 1
            listed[place] = member
            place += 1
        if counts[band] and member >= starts[band + 1]:
            raise ValueError("a delta block lists an element beyond the end of its band")
    found = np.empty(_total(members), dtype=np.int64)
    place = to = 0
    for band in range(len(counts)):
        end = place + counts[band]
        if not is_inverted[band]:
            while place < end:
                found[to] = listed[place]
                place += 1
                to += 1
            continue
        for member in range(starts[band], starts[band + 1]):
            if place < end and listed[place] == member:
                place += 1
            else:
                found[to] = member
                to += 1
    return found, at


@loop
def _values(data, at, counts, low_bits):
    """Groups of values, and where what follows begins."""
    unary_bytes, start = _number(data, at)
    unary = _taken(data, start, unary_bytes)
    values = _quotients(unary, _total(counts))
    at = start + unary_bytes
    remainder_bits = 0
    for group in range(len(counts)):
        remainder_bits += counts[group] * low_bits[group]
    end = _end_of_bits(data, at, remainder_bits)
    remainders, at = data[at:end], end
    for place in range(len(values)):
        if values[place] == ESCAPE:
            if at + 4 > len(data):
                raise ValueError("a delta block ends early")
            for octet in range(4):
                values[place] += np.int64(data[at + octet]) << (8 * octet)
            at += 4
    _add_remainders(values, remainders, counts, low_bits)
    return values, at


@loop
def _total(counts):
    total = 0
    for count in counts:
        total += count
    return total


@loop
def _number(data, at):
    value, shift = np.int64(0), 0
    while shift < 35:
        if at >= len(data):
            raise ValueError("a delta block ends inside a number")
        octet = np.int64(data[at])
        at += 1
        value |= (octet & 127) << shift
        if octet < 128:
            return value, at
        shift += 7
    raise ValueError("a delta block has a number without end")


@loop
def _taken(data, at, size):
    if size > len(data) - at:
        raise ValueError("a delta block ends early")
    return data[at : at + size]


@loop
def _end_of_bits(data, at, count):
    """Where a run of bits ends, which must end in zeros."""
    run = _taken(data, at, (count + 7) // 8)
    if count % 8 and run[-1] >> (count % 8):
        raise ValueError("a delta block's bits do not end in zeros")
    return at + len(run)


@loop
def _quotients(unary, count):
    total = 0
    for at in range(len(unary)):
        total += ones(U(unary[at]))
    if total != count:
        raise ValueError("a delta block's unary part does not hold its values")
    found = np.empty(count, dtype=np.int64)
    before, at = -1, 0
    for octet in range(len(unary)):
        left = U(unary[octet])
        while left:
            end = octet * 8 + lowest(left)
            left &= left - U(1)
            if end - before - 1 > ESCAPE:
                raise ValueError("a delta block's unary part has a quotient beyond the escape")
            found[at] = end - before - 1
            before = end
            at += 1
    if len(unary) and not unary[-1]:
        raise ValueError("a delta block's unary part has an end without use")
    return found


@loop
def _add_remainders(values, remainders, counts, low_bits):
    bit = start = 0
    for group in range(len(counts)):
        end, shift = start + counts[group], low_bits[group]
        for at in range(start, end):
            if values[at] > MAX_VALUE >> shift:
                raise ValueError("a delta block has a value of more than 32 bits")
            values[at] <<= shift
        for plane in range(shift):
            for at in range(start, end):
                values[at] |= np.int64(remainders[bit >> 3] >> (bit & 7) & 1) << plane
                bit += 1
        start = end
