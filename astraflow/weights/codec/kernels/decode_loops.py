"""Compiled loops of the codec that read gaps and values in Rice code.

Their input may be damaged or malicious: sizes are checked before any allocation or access. numba converts mixed signed
and unsigned integers to floats, so bits are unsigned (`U`) on both sides everywhere.
"""

import numpy as np

from astraflow.weights.codec.kernels.base import ESCAPE, MAX_VALUE
from astraflow.weights.codec.kernels.element_loops import move, positions_of
from astraflow.weights.codec.kernels.simd import compile_loop, popcount, trailing_zeros

U = np.uint64


@compile_loop
def apply(bits, width, words, before, starts, data, changed, large, extra_counts, extra_low_bits):
    """Applies the steps of a block in place; returns sorted positions. Raises: ValueError.

    changed, large: listed, inverted, low bits, members; arrays with one item per band.
    """
    ranks, at = _chosen(data, np.int64(0), changed, starts)
    bounds = np.zeros_like(starts)
    for band in range(len(starts) - 1):
        bounds[band + 1] = bounds[band] + changed[3][band]
    large_at, at = _chosen(data, at, large, bounds)
    extras, at = _values(data, at, extra_counts, extra_low_bits)
    for extra in extras:
        if extra >= (1 << (8 * width - 1)) - 1:
            raise ValueError("it has a step larger than its elements")
    count = len(ranks)
    end = _end_of_bits(data, at, count)
    if end != len(data):
        raise ValueError("bytes follow its last field")
    extra, is_up = np.zeros(count, dtype=np.uint32), np.empty(count, dtype=np.uint8)
    for index in range(len(large_at)):
        extra[large_at[index]] = extras[index] + 1
    for index in range(count):
        is_up[index] = data[at + (index >> 3)] >> (index & 7) & 1
        if is_up[index] and extra[index] >= (1 << (8 * width - 1)) - 1:
            raise ValueError("it has a step larger than its elements")
    if len(words):
        return move(bits, width, positions_of(words, before, len(words) // len(extra_counts), ranks), extra, is_up)
    return move(bits, width, ranks, extra, is_up)


@compile_loop
def _chosen(data, at, table, starts):
    """Returns the selected members, sorted, and the position after them in the data."""
    counts, is_inverted, low_bits, members = table
    listed, at = _values(data, at, counts, low_bits)
    index = 0
    for band in range(len(counts)):
        member = starts[band] - 1
        for _ in range(counts[band]):
            member += listed[index] + 1
            listed[index] = member
            index += 1
        if counts[band] and member >= starts[band + 1]:
            raise ValueError("it lists an element beyond the end of its band")
    chosen = np.empty(_total(members), dtype=np.int64)
    index = to = 0
    for band in range(len(counts)):
        end = index + counts[band]
        if not is_inverted[band]:
            while index < end:
                chosen[to] = listed[index]
                index += 1
                to += 1
            continue
        for member in range(starts[band], starts[band + 1]):
            if index < end and listed[index] == member:
                index += 1
            else:
                chosen[to] = member
                to += 1
    return chosen, at


@compile_loop
def _values(data, at, counts, low_bits):
    """Returns groups of values, and the position after them in the data."""
    unary_bytes, start = _read_number(data, at)
    unary = _read_bits(data, start, unary_bytes)
    values = _quotients(unary, _total(counts))
    at = start + unary_bytes
    remainder_bits = 0
    for group in range(len(counts)):
        remainder_bits += counts[group] * low_bits[group]
    end = _end_of_bits(data, at, remainder_bits)
    remainders, at = data[at:end], end
    for index in range(len(values)):
        if values[index] == ESCAPE:
            if at + 4 > len(data):
                raise ValueError("it ends early")
            for octet in range(4):
                values[index] += np.int64(data[at + octet]) << (8 * octet)
            at += 4
    _add_remainders(values, remainders, counts, low_bits)
    return values, at


@compile_loop
def _total(counts):
    total = 0
    for count in counts:
        total += count
    return total


@compile_loop
def _read_number(data, at):
    value, shift = np.int64(0), 0
    while shift < 35:
        if at >= len(data):
            raise ValueError("it ends inside a number")
        octet = np.int64(data[at])
        at += 1
        value |= (octet & 127) << shift
        if octet < 128:
            return value, at
        shift += 7
    raise ValueError("it has a number of too many bytes")


@compile_loop
def _read_bits(data, at, size):
    if size > len(data) - at:
        raise ValueError("it ends early")
    return data[at : at + size]


@compile_loop
def _end_of_bits(data, at, count):
    """Returns the end of a run of bits, whose padding must be zeros."""
    run = _read_bits(data, at, (count + 7) // 8)
    if count % 8 and run[-1] >> (count % 8):
        raise ValueError("its bits are not padded with zeros")
    return at + len(run)


@compile_loop
def _quotients(unary, count):
    total = 0
    for at in range(len(unary)):
        total += popcount(U(unary[at]))
    if total != count:
        raise ValueError("its unary part does not hold its values")
    quotients = np.empty(count, dtype=np.int64)
    before, at = -1, 0
    for octet in range(len(unary)):
        remaining = U(unary[octet])
        while remaining:
            end = octet * 8 + trailing_zeros(remaining)
            remaining &= remaining - U(1)
            if end - before - 1 > ESCAPE:
                raise ValueError("its unary part has a quotient beyond the escape")
            quotients[at] = end - before - 1
            before = end
            at += 1
    if len(unary) and not unary[-1]:
        raise ValueError("its unary part has unused bytes")
    return quotients


@compile_loop
def _add_remainders(values, remainders, counts, low_bits):
    bit = start = 0
    for group in range(len(counts)):
        end, shift = start + counts[group], low_bits[group]
        for at in range(start, end):
            if values[at] > MAX_VALUE >> shift:
                raise ValueError("it has a value of more than 32 bits")
            values[at] <<= shift
        for plane in range(shift):
            for at in range(start, end):
                values[at] |= np.int64(remainders[bit >> 3] >> (bit & 7) & 1) << plane
                bit += 1
        start = end
