"""Messages that end with arrays: protobuf for what is small, one stretch of plain bytes for what is large.

Parsed the usual way, a `bytes` field is copied into the message and again when it is read; written, twice as well. So
the messages with arrays (`padding = 14`, `arrays = 15` in the protos) are put together by hand, arrays first:

    72 00        padding, empty
    7a           arrays, with its length as a varint of five bytes, whatever the length
    [5 bytes]
    [arrays]     at byte 8 of the message: aligned, and used where it is
    [rest]       all other fields, as protobuf writes them

That is a valid message for every protobuf library, and a message in any other order is understood too, at the price of
the copies.
"""

from collections.abc import Iterable
from typing import Protocol, TypeAlias, TypeVar

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
"""Methods whose handler gets the request as bytes."""

RAW_REPLIES = frozenset({"/astraflow.v1.TrainerData/PullBatch", "/astraflow.v1.WeightPlane/Fetch"})
"""Methods whose handler yields replies as bytes."""


class _Message(Protocol):
    arrays: bytes

    def SerializeToString(self) -> bytes: ...  # noqa: N802 (protobuf's name)


M = TypeVar("M", data.PushRequest, data.BatchPiece)


def join(message: _Message, arrays: Iterable[npt.NDArray[np.int32] | npt.NDArray[np.float32]]) -> bytes:
    """A message, whose own `arrays` is empty, and the arrays it ends with."""
    views = [array.data for array in arrays]
    length = sum(view.nbytes for view in views)
    return b"".join((_HEAD, varint(length, digits=5), *views, message.SerializeToString()))


def split(kind: type[M], raw: bytes) -> tuple[M, Arrays]:
    """A message and its arrays: uint8 `[bytes]`, read-only, in `raw` itself where the sender put them first.

    Raises: InvalidInput when it is no such message.
    """
    length = _length(raw)
    try:
        message = kind.FromString(raw if length is None else raw[_HEAD_BYTES + length :])
    except DecodeError:
        raise InvalidInput(f"these {len(raw)} bytes are no {kind.__name__}") from None
    if length is None:
        return message, np.frombuffer(message.arrays, dtype=np.uint8)
    if message.arrays:
        raise InvalidInput(f"a {kind.__name__} has its arrays twice")
    return message, np.frombuffer(raw, dtype=np.uint8, count=length, offset=_HEAD_BYTES)


def varint(value: int, *, digits: int) -> bytes:
    """That many bytes, whatever the value: seven bits each, the lowest first, all but the last marked as followed by
    another."""
    low = [value >> shift & 0x7F | 0x80 for shift in range(0, 7 * (digits - 1), 7)]
    return bytes([*low, value >> 7 * (digits - 1)])


def _length(raw: bytes) -> int | None:
    """Bytes of the arrays, where they come first; None where the message is written in another order.

    Raises: InvalidInput when the arrays would be longer than the message.
    """
    digits = raw[len(_HEAD) : _HEAD_BYTES]
    if not raw.startswith(_HEAD) or len(digits) < 5 or digits[4] >= 0x80 or any(digit < 0x80 for digit in digits[:4]):
        return None
    length = sum((digit & 0x7F) << 7 * place for place, digit in enumerate(digits))
    if length > len(raw) - _HEAD_BYTES:
        raise InvalidInput(f"a message of {len(raw)} bytes says that its arrays have {length}")
    return length
