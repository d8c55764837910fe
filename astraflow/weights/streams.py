"""What payloads of delta blocks are made of: numbers, runs of bits, and small numbers in Rice's code.

A *number* is LEB128: seven bits a byte, lowest first, the top bit set in all bytes but the last. *Bits* fill bytes from
the lowest bit up; the last byte ends in zeros.

Rice's code with `k` low bits writes a value as its quotient by 2**k in unary (that many zeros, then a one) and its
remainder in k bits. It is within a few hundredths of a bit of the best there is for gaps between independent events.
Here quotients stand apart from remainders, so that all of a kind decode at once; a quotient of `ESCAPE` stands for that
and more, and the excess follows in 32 bits.
"""

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.weights.kernels.base import ByteArray


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
        else:
            raise CorruptData("a delta block has a number without end")
        if value > most:
            raise CorruptData(f"a delta block says {value} where at most {most} is possible")
        return value

    def take(self, size_bytes: int) -> ByteArray:
        """The next bytes, a view."""
        found = np.frombuffer(self._data[self._at : self._at + size_bytes], dtype=np.uint8)
        if len(found) != size_bytes:
            raise CorruptData(f"a delta block ends {size_bytes - len(found)} bytes early")
        self._at += size_bytes
        return found

    def bits(self, count: int) -> ByteArray:
        """The next run of bits, packed."""
        found = self.take((count + 7) // 8)
        if count % 8 and found[-1] >> count % 8:
            raise CorruptData("a delta block's bits do not end in zeros")
        return found

    def rest(self) -> memoryview:
        """All that was not read."""
        return self._data[self._at :]

    def end(self) -> None:
        """Raises: CorruptData when something is left."""
        if self._at != len(self._data):
            raise CorruptData(f"{len(self._data) - self._at} bytes follow what a delta block should hold")
