"""What payloads of delta blocks are made of: numbers, runs of bits, and small numbers in Rice's code.

A *number* is LEB128: seven bits a byte, lowest first, the top bit set in all bytes but the last. *Bits* fill bytes from
the lowest bit up; the last byte ends in zeros.

Rice's code with `k` low bits writes a value as its quotient by 2**k in unary (that many zeros, then a one) and its
remainder in k bits. It is within a few hundredths of a bit of the best there is for gaps between independent events.
Here quotients stand apart from remainders, so that all of a kind decode at once; a quotient of `ESCAPE` stands for that
and more, and the excess follows in 32 bits.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from astraflow.contract.errors import CorruptData

ESCAPE = 16
MAX_LOW_BITS = 31
_EXCESS = np.dtype("<u4")
_MOST = 2**32 - 1
_SAMPLED_VALUES = 1024

_NOTHING = np.zeros(0, dtype=np.uint8)

ByteArray = npt.NDArray[np.uint8]
ValueArray = npt.NDArray[np.uint32]
CountArray = npt.NDArray[np.int64]


def number(value: int) -> bytes:
    """A number as bytes.

    >>> number(300).hex()
    'ac02'
    """
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


class Reader:
    """Reads a payload from its start, believing no size before it is bounded. All but `end` raise CorruptData."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def number(self, *, most: int) -> int:
        """The next number, which must not be larger."""
        value = shift = 0
        while shift < 35:
            if self._at == len(self._data):
                raise CorruptData("a delta block ends inside a number")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if value > most or shift > 35:
            raise CorruptData(f"a delta block says {value} where at most {most} is possible")
        return value

    def take(self, size_bytes: int) -> ByteArray:
        """The next bytes, a view."""
        found = np.frombuffer(self._data[self._at : self._at + size_bytes], dtype=np.uint8)
        if len(found) != size_bytes:
            raise CorruptData(f"a delta block ends {size_bytes - len(found)} bytes early")
        self._at += size_bytes
        return found

    def bits(self, count: int) -> "Bits":
        """The next run of bits."""
        return Bits(self.take((count + 7) // 8), count)

    def end(self) -> None:
        """Raises: CorruptData when something is left."""
        if self._at != len(self._data):
            raise CorruptData(f"{len(self._data) - self._at} bytes follow what a delta block should hold")


class Bits:
    """A run of bits, handed out piece by piece so that no more of it is unpacked than is looked at."""

    def __init__(self, packed: ByteArray, count: int) -> None:
        self._packed = packed
        self._at = 0
        if count % 8 and packed[-1] >> count % 8:
            raise CorruptData("a delta block's bits do not end in zeros")

    def take(self, count: int) -> ByteArray:
        """The next bits, each a byte of 0 or 1."""
        first, skipped = divmod(self._at, 8)
        self._at += count
        return np.unpackbits(self._packed[first : (self._at + 7) // 8], bitorder="little")[skipped:][:count]


def packed(bits: Iterable[ByteArray]) -> bytes:
    """Runs of bits, each a byte, 0 or not, as bytes."""
    return np.packbits(np.concatenate([_NOTHING, *bits]), bitorder="little").tobytes()


def bit_lengths(values: ValueArray) -> CountArray:
    """Binary digits of each value.

    >>> bit_lengths(np.array([0, 1, 5, 2**32 - 1], dtype=np.uint32)).tolist()
    [0, 1, 3, 32]
    """
    digits: CountArray = values.astype(np.float64).view(np.int64) >> 52
    digits -= 1022
    np.maximum(digits, 0, out=digits)
    return digits


def choose_low_bits(values: ValueArray, counts: CountArray) -> list[int]:
    """For each group of values, as many as `counts` says one after another, the low bits that make it smallest.

    Where all groups are large, a sample decides.
    """
    every = max(1, min((count for count in counts.tolist() if count), default=0) // _SAMPLED_VALUES)
    lengths = bit_lengths(values[::every])
    groups = np.repeat(np.arange(len(counts)), counts)[::every]
    histogram = np.bincount(groups * 33 + lengths, minlength=33 * len(counts)).reshape(-1, 33)
    found: list[int] = (histogram @ _COST).argmin(axis=1).tolist()
    return found


def encode_rice(values: ValueArray, counts: Sequence[int], low_bits: Sequence[int]) -> list[bytes]:
    """Groups of values, each with its low bits, as: size of the unary part, unary part, remainders, excesses."""
    quotients = values >> np.repeat(np.array(low_bits, dtype=np.uint32), counts)
    excess = quotients[quotients >= ESCAPE] - np.uint32(ESCAPE)
    ends = np.cumsum(np.minimum(quotients, ESCAPE), dtype=np.int64)
    ends += np.arange(len(ends))
    unary = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, dtype=np.uint8)
    unary[ends] = 1
    unary_bytes = packed([unary])
    remainders = packed(_remainder_bits(values, counts, low_bits))
    return [number(len(unary_bytes)), unary_bytes, remainders, excess.astype(_EXCESS).tobytes()]


def decode_rice(reader: Reader, counts: Sequence[int], low_bits: Sequence[int]) -> CountArray:
    """The groups of values, one after another `[sum(counts)]`. Raises: CorruptData."""
    count = sum(counts)
    values = _quotients(reader, count)
    escaped = values == ESCAPE
    remainders = reader.bits(sum(n * k for n, k in zip(counts, low_bits, strict=True)))
    excess = reader.take(_EXCESS.itemsize * int(np.count_nonzero(escaped)))
    values[escaped] += excess.view(_EXCESS)
    start = 0
    for size, bits in zip(counts, low_bits, strict=True):
        group = values[start : start + size]
        if group.max(initial=0) > _MOST >> bits:
            raise CorruptData("a delta block has a value of more than 32 bits")
        group <<= bits
        for place in range(bits):
            group |= remainders.take(size).astype(np.int64) << place
        start += size
    return values


def _quotients(reader: Reader, count: int) -> CountArray:
    unary = reader.take(reader.number(most=(count * (ESCAPE + 1) + 7) // 8))
    if int(np.bitwise_count(unary).sum(dtype=np.int64)) != count:
        raise CorruptData(f"a delta block's unary part does not hold {count} values")
    ends = np.flatnonzero(np.unpackbits(unary, bitorder="little").view(np.bool_))
    found = np.diff(ends, prepend=-1)
    found -= 1
    if found.max(initial=0) > ESCAPE or (len(unary) and not unary[-1]):
        raise CorruptData("a delta block's unary part has a quotient beyond the escape, or an end without use")
    return found


def _remainder_bits(values: ValueArray, counts: Sequence[int], low_bits: Sequence[int]) -> Iterable[ByteArray]:
    """Of each group, the lowest bit of all its values, then the next one."""
    ends = np.cumsum(counts)
    for end, size, bits in zip(ends.tolist(), counts, low_bits, strict=True):
        for first in range(0, bits, 8):
            octets = (values[end - size : end] >> np.uint32(first)).astype(np.uint8)
            for place in range(min(8, bits - first)):
                yield octets & np.uint8(1 << place)


def _cost() -> npt.NDArray[np.int64]:
    """Bits, times 64, that a value of each bit length takes with each number of low bits `[33, MAX_LOW_BITS + 1]`."""
    cost = np.zeros((33, MAX_LOW_BITS + 1), dtype=np.int64)
    for length in range(33):
        for bits in range(MAX_LOW_BITS + 1):
            quotients = [(2**length * part // 64) >> bits for part in range(32, 64)] if length else [0] * 32
            cost[length, bits] = sum(
                2 * (min(quotient, ESCAPE) + 1 + bits + 32 * (quotient >= ESCAPE)) for quotient in quotients
            )
    return cost


_COST = _cost()
