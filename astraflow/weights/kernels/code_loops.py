"""The codec's loops over gaps and values in Rice's code, compiled.

Nothing here checks an index: what comes from outside was checked before. numba makes floats of signed and unsigned
integers together, so bits are unsigned (`U`) on both sides everywhere.
"""

import numpy as np

from astraflow.weights.kernels.rice import ESCAPE, MAX_VALUE
from astraflow.weights.kernels.vectors import below, digits, loop, lowest, ones

U = np.uint64


@loop
def gap_counts(chosen, starts, is_inverted, counts):
    """Returns how many gaps there are."""
    at = total = 0
    for band in range(len(counts)):
        first = at
        while at < len(chosen) and chosen[at] < starts[band + 1]:
            at += 1
        size = starts[band + 1] - starts[band]
        is_inverted[band] = 2 * (at - first) > size
        counts[band] = size - (at - first) if is_inverted[band] else at - first
        total += counts[band]
    return total


@loop
def gaps(chosen, starts, is_inverted, gaps):
    """Fill the gaps that were counted."""
    at = to = 0
    for band in range(len(is_inverted)):
        before, end = starts[band] - 1, starts[band + 1]
        if not is_inverted[band]:
            while at < len(chosen) and chosen[at] < end:
                gaps[to] = chosen[at] - before - 1
                before = chosen[at]
                at += 1
                to += 1
            continue
        expected = starts[band]
        while expected < end:
            if at < len(chosen) and chosen[at] == expected:
                at += 1
            else:
                gaps[to] = expected - before - 1
                before = expected
                to += 1
            expected += 1


@loop
def are_inside(gaps, counts, starts):
    """Whether members stay inside their bands. `gaps` become members, be they meant or not."""
    at = 0
    for band in range(len(counts)):
        member = starts[band] - 1
        for _ in range(counts[band]):
            member += gaps[at] + 1
            gaps[at] = member
            at += 1
        if counts[band] and member >= starts[band + 1]:
            return False
    return True


@loop
def flip(listed, counts, is_inverted, starts, found):
    """Fill `found` with what is meant: the listed, or in inverted bands the others."""
    at = to = 0
    for band in range(len(counts)):
        end = at + counts[band]
        if not is_inverted[band]:
            while at < end:
                found[to] = listed[at]
                at += 1
                to += 1
            continue
        for member in range(starts[band], starts[band + 1]):
            if at < end and listed[at] == member:
                at += 1
            else:
                found[to] = member
                to += 1


@loop
def low_bits(values, counts, every, cost, found):
    """Fill `found` with the low bits that make a sample of each group smallest."""
    histogram = np.zeros(33, dtype=np.int64)
    start = 0
    for group in range(len(counts)):
        end = start + counts[group]
        histogram[:] = 0
        for at in range((start + every - 1) // every * every, end, every):
            histogram[digits(U(values[at]))] += 1
        best, fewest = 0, np.int64(2**62)
        for bits in range(cost.shape[1]):
            total = 0
            for length in range(33):
                total += histogram[length] * cost[length, bits]
            if total < fewest:
                best, fewest = bits, total
        found[group] = best
        start = end


@loop
def rice_sizes(values, counts, low_bits):
    """Bits of the unary part and of the remainders, and how many values have an excess."""
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


@loop
def rice(values, counts, low_bits, unary, remainders, excesses):
    """Write the parts. unary, remainders: words, cleared, with one more than their bits need."""
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
                    word = ~below(values, at, np.uint32(1 << plane), np.uint32(1))
                else:
                    word = U(0)
                    for place in range(size):
                        word |= (U(values[at + place]) >> U(plane) & U(1)) << U(place)
                remainders[plane_bit >> 6] |= word << U(plane_bit & 63)
                if plane_bit & 63:
                    remainders[(plane_bit >> 6) + 1] |= word >> U(64 - (plane_bit & 63))
                at += size
                plane_bit += size
        start += count


@loop
def quotients(unary, count, found):
    """Returns the largest, or -1 where there are not that many. unary: bytes."""
    total = 0
    for at in range(len(unary)):
        total += ones(U(unary[at]))
    if total != count:
        return -1
    before, largest, at = -1, 0, 0
    for octet in range(len(unary)):
        left = U(unary[octet])
        while left:
            end = octet * 8 + lowest(left)
            left &= left - U(1)
            quotient = end - before - 1
            before = end
            largest = max(largest, quotient)
            found[at] = quotient
            at += 1
    return largest


@loop
def add_remainders(values, remainders, counts, low_bits):
    """Returns whether all stay within 32 bits. remainders: bytes."""
    bit = start = 0
    for group in range(len(counts)):
        end, shift = start + counts[group], low_bits[group]
        for at in range(start, end):
            if values[at] > MAX_VALUE >> shift:
                return False
            values[at] <<= shift
        for plane in range(shift):
            for at in range(start, end):
                values[at] |= np.int64(remainders[bit >> 3] >> (bit & 7) & 1) << plane
                bit += 1
        start = end
    return True
