"""Elements of delta-block payloads: numbers, runs of bits, and small numbers in Rice code.

A *number* is LEB128: seven bits per byte, lowest first, the top bit set in all bytes but the last. *Bits* fill bytes
from the lowest bit up; the last byte is padded with zeros.

Rice code with `k` low bits writes a value as its quotient by 2**k in unary (that many zeros, then a one) and its
remainder in k bits. For gaps between independent events it is within a few hundredths of a bit of the optimum. Here
quotients are stored apart from remainders, so that each can be decoded in one pass. A quotient of `ESCAPE` stands for
`ESCAPE` or more, and the excess follows in 32 bits.
"""

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.weights.codec.kernels.base import ByteArray


def encode_varint(value: int) -> bytes:
    """Encodes a number.

    >>> encode_varint(300).hex()
    'ac02'
    """
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class PayloadReader:
    """Reads a payload from its start and bounds every size. All methods but `remaining` raise CorruptData."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0

    def read_varint(self, *, max_value: int) -> int:
        """Returns the next number, which must be at most `max_value`."""
        value = shift = 0
        while shift < 35:
            if self._position == len(self._data):
                raise CorruptData(
                    "cannot read a delta block: it ends inside a number; fetch it again", code="weights.malformed_delta"
                )
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        else:
            raise CorruptData(
                "cannot read a delta block: it has a number of too many bytes; fetch it again",
                code="weights.malformed_delta",
            )
        if value > max_value:
            raise CorruptData(
                f"cannot read a delta block: number {value} is above the maximum of {max_value}; fetch it again",
                code="weights.malformed_delta",
            )
        return value

    def read_bytes(self, size_bytes: int) -> ByteArray:
        """Returns the next bytes, as a view."""
        data = np.frombuffer(self._data[self._position : self._position + size_bytes], dtype=np.uint8)
        if len(data) != size_bytes:
            raise CorruptData(
                f"cannot read a delta block: it ends {size_bytes - len(data)} bytes early; fetch it again",
                code="weights.malformed_delta",
            )
        self._position += size_bytes
        return data

    def read_bits(self, count: int) -> ByteArray:
        """Returns the next run of bits, packed."""
        packed = self.read_bytes((count + 7) // 8)
        if count % 8 and packed[-1] >> count % 8:
            raise CorruptData(
                "cannot read a delta block: its bits are not padded with zeros; fetch it again",
                code="weights.malformed_delta",
            )
        return packed

    def remaining(self) -> memoryview:
        """Returns all unread bytes."""
        return self._data[self._position :]

    def check_exhausted(self) -> None:
        """Checks that no unread bytes are left. Raises: CorruptData."""
        if self._position != len(self._data):
            raise CorruptData(
                f"cannot read a delta block: {len(self.remaining())} bytes follow its last field; fetch it again",
                code="weights.malformed_delta",
            )
