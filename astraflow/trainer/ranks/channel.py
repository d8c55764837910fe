"""Messages between the ranks of a trainer: JSON and named arrays over a socket. Bytes that arrive are parsed, never
executed: torch's own object collectives use pickle.

Both sides of a new connection prove that they have the secret of the ranks, which is never sent:

    first rank ──store──► address, nonce A, proof(address, A)
    rank n     ─────────► n, nonce B, proof(n, A, B)
    first rank ─────────► proof(B)
"""

import contextlib
import hmac
import json
import math
import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow.contract.errors import InvalidInput, Unavailable

_SIZES = struct.Struct("<QQ")
"""Start of a message: bytes of its head, then bytes of all its arrays."""
_MAX_HEAD_BYTES = 64 * 2**20
_MAX_ARRAY_BYTES = 2**36
"""Most bytes of all arrays of a message, more than the largest share of a batch."""
_MAX_GREETING_BYTES = 1024
_DTYPES = {dtype.str: dtype for dtype in map(np.dtype, "?" + np.typecodes["AllInteger"] + np.typecodes["Float"])}
"""Types of the arrays that a message may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A command, or its answer."""

    facts: Mapping[str, Any]
    """Values of JSON."""
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """Arrays of numbers and booleans."""


class Channel:
    """One side of the connection between the first rank and another rank. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Message) -> None:
        """Sends a message; blocks while the other side does not read. Raises: Unavailable when it is gone."""
        arrays = {name: np.ascontiguousarray(value) for name, value in message.arrays.items()}
        shapes = {name: [value.dtype.str, list(value.shape)] for name, value in arrays.items()}
        head = json.dumps({"facts": message.facts, "arrays": shapes}).encode()
        sizes = _SIZES.pack(len(head), sum(value.nbytes for value in arrays.values()))
        try:
            with self._lock:
                self._connection.sendall(sizes + head)
                for value in arrays.values():
                    self._connection.sendall(value.reshape(-1).view(np.uint8).data)
        except OSError as problem:
            raise _gone(problem) from problem

    def receive(self) -> Message:
        """Returns the next message. Raises: Unavailable when the other side is gone; InvalidInput for other bytes."""
        head_bytes, array_bytes = _SIZES.unpack(self._read(_SIZES.size).tobytes())
        if head_bytes > _MAX_HEAD_BYTES or array_bytes > _MAX_ARRAY_BYTES:
            raise _invalid(f"it has a head of {head_bytes} bytes and arrays of {array_bytes} bytes")
        facts, forms = _parse(self._read(head_bytes).tobytes())
        if (shape_bytes := sum(form.size_bytes for form in forms.values())) != array_bytes:
            raise _invalid(f"the shapes of its arrays need {shape_bytes} bytes, but it declares {array_bytes}")
        return Message(facts=facts, arrays={name: self._read_array(form) for name, form in forms.items()})

    def receive_greeting(self, *, timeout_s: float) -> Mapping[str, Any]:
        """Returns the facts of a connection's first message, whose sender is not trusted yet: at most 1 kB, no arrays.

        timeout_s: time for the whole message. Raises: Unavailable when it is late or the other side is gone;
        InvalidInput for other bytes, or more of them.
        """
        deadline = time.monotonic() + timeout_s
        head_bytes, array_bytes = _SIZES.unpack(self._read(_SIZES.size, deadline=deadline).tobytes())
        if head_bytes > _MAX_GREETING_BYTES or array_bytes:
            raise _invalid(f"it has a head of {head_bytes} bytes and arrays of {array_bytes} bytes")
        facts, forms = _parse(self._read(head_bytes, deadline=deadline).tobytes())
        if forms:
            raise _invalid(f"it has {len(forms)} arrays")
        self._connection.settimeout(None)
        return facts

    def close(self) -> None:
        """Closes the connection; the other side's `receive` raises Unavailable."""
        with contextlib.suppress(OSError):  # the other side has closed it
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _read_array(self, form: "_Form") -> npt.NDArray[Any]:
        values = self._read(form.size_bytes).view(form.dtype)
        try:
            return values.reshape(form.shape)
        except (ValueError, OverflowError) as problem:  # numpy limits the number of dimensions, and the size of each
            raise _invalid(repr(problem)) from problem

    def _read(self, size: int, *, deadline: float | None = None) -> npt.NDArray[np.uint8]:
        """Returns the next bytes. deadline: for all of them, of `time.monotonic()`."""
        data = np.empty(size, dtype=np.uint8)
        view = data.data
        while len(view):
            try:
                if deadline is not None:
                    if (remaining_s := deadline - time.monotonic()) <= 0:
                        raise TimeoutError("timed out")
                    self._connection.settimeout(remaining_s)
                count = self._connection.recv_into(view)
            except OSError as problem:
                raise _gone(problem) from problem
            if not count:
                raise _gone("it closed the connection")
            view = view[count:]
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """Type and shape of an array that follows."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def proof_of(secret: bytes, *claims: object) -> str:
    """Returns what only a process with the secret of the ranks can compute of these claims."""
    return hmac.digest(secret, json.dumps(claims).encode(), "sha256").hex()


def is_proof(sent: object, secret: bytes, *claims: object) -> bool:
    """Returns whether a value that arrived is the proof of these claims."""
    expected = proof_of(secret, *claims)
    # JSON may hold lone surrogates; text that is not ASCII cannot be compared in constant time.
    return isinstance(sent, str) and hmac.compare_digest(sent.encode(errors="surrogatepass"), expected.encode())


def _parse(head: bytes) -> tuple[dict[str, Any], dict[str, _Form]]:
    """Returns the facts and the forms of the arrays. Raises: InvalidInput."""
    try:
        parsed = json.loads(head)
        forms = {
            name: _Form(dtype=_DTYPES[dtype], shape=tuple(map(_dimension, shape)))
            for name, (dtype, shape) in dict(parsed["arrays"]).items()
        }
        return dict(parsed["facts"]), forms
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise _invalid(repr(problem)) from problem


def _dimension(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"an array has the dimension {value!r}")
    return value


def _gone(cause: object) -> Unavailable:
    return Unavailable(
        f"cannot exchange messages with another rank of the trainer: {cause}; restart the trainer, which resumes from "
        "its checkpoint",
        code="trainer.rank_lost",
    )


def _invalid(cause: str) -> InvalidInput:
    return InvalidInput(
        f"cannot read the message of another rank: {cause}; run the same release of AstraFlow on all ranks",
        code="trainer.invalid_message",
    )
