"""Wire format of messages with arrays: protobuf for the small fields, one block of raw bytes for the arrays.

Protobuf copies a `bytes` field twice when it parses it, and twice when it serialises it. Messages with arrays (`padding
= 14`, `arrays = 15` in the protos) are therefore assembled by hand, arrays first:

    72 00        padding, empty
    7a           arrays, with its length as a varint of five bytes, whatever the length
    [5 bytes]
    [arrays]     at byte 8 of the message: aligned, and used where it is
    [rest]       all other fields, as protobuf writes them

The result is a valid message for every protobuf library. Messages in any other field order are accepted too, with those
copies.
"""

from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from astraflow.contract.errors import InvalidInput
from astraflow.wire.pb import data_plane_pb2 as data

Arrays: TypeAlias = npt.NDArray[np.uint8]
"""The bytes of a message's arrays."""

_HEAD = b"\x72\x00\x7a"
_HEAD_BYTES = 8

RAW_REQUESTS = frozenset({"/astraflow.v1.NodeData/Push"})
"""Methods whose handler receives the request as bytes."""

RAW_REPLIES = frozenset({"/astraflow.v1.TrainerData/PullBatch", "/astraflow.v1.WeightPlane/Fetch"})
"""Methods whose handler yields replies as bytes."""


class _Message(Protocol):
    arrays: bytes

    def SerializeToString(self) -> bytes: ...


M = TypeVar("M", data.PushRequest, data.BatchPiece)


def join(message: _Message, arrays: Iterable[npt.NDArray[Any]]) -> bytes:
    """Serialises a message, whose own `arrays` is empty, with its arrays."""
    views = [array.data for array in arrays]
    length = sum(view.nbytes for view in views)
    return b"".join((_HEAD, varint(length, digits=5), *views, message.SerializeToString()))


def split(kind: type[M], raw: bytes) -> tuple[M, Arrays]:
    """Parses a message and its arrays: uint8 `[bytes]`, read-only, a view of `raw` if the sender put them first.

    Raises: InvalidInput for anything else.
    """
    length = _length(raw)
    try:
        message = kind.FromString(raw if length is None else raw[_HEAD_BYTES + length :])
    except DecodeError:
        raise InvalidInput(
            f"cannot parse {len(raw)} bytes as {kind.__name__}: not a valid message; "
            "install the same release on both sides",
            code="message.malformed",
        ) from None
    if length is None:
        return message, np.frombuffer(message.arrays, dtype=np.uint8)
    if message.arrays:
        raise InvalidInput(f"cannot parse {kind.__name__}: it has its arrays twice; send one", code="message.malformed")
    return message, np.frombuffer(raw, dtype=np.uint8, count=length, offset=_HEAD_BYTES)


def varint(value: int, *, digits: int) -> bytes:
    """Encodes a varint in exactly `digits` bytes: seven bits each, the lowest first, all but the last with the
    continuation bit."""
    low = [value >> shift & 0x7F | 0x80 for shift in range(0, 7 * (digits - 1), 7)]
    return bytes([*low, value >> 7 * (digits - 1)])


def _length(raw: bytes) -> int | None:
    """Returns the size of the arrays if they come first; None for another field order.

    Raises: InvalidInput when the arrays would be longer than the message.
    """
    digits = raw[len(_HEAD) : _HEAD_BYTES]
    if not raw.startswith(_HEAD) or len(digits) < 5 or digits[4] >= 0x80 or any(digit < 0x80 for digit in digits[:4]):
        return None
    length = sum((digit & 0x7F) << 7 * index for index, digit in enumerate(digits))
    if length > len(raw) - _HEAD_BYTES:
        raise InvalidInput(
            f"cannot parse message: it has {len(raw)} bytes but declares {length} bytes of arrays; send it again",
            code="message.malformed",
        )
    return length
