"""Messages between the ranks of a trainer: JSON and named arrays over a socket. Bytes that arrive are parsed, never
executed: torch's own object collectives use pickle."""

import contextlib
import hmac
import json
import math
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow.contract.errors import InvalidInput, Unavailable

_LENGTH = struct.Struct("<Q")
_MAX_FACTS_BYTES = 64 * 2**20
_NUMBERS = frozenset("biuf")
"""Kinds of numpy types that a message may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A command, or its answer."""

    facts: Mapping[str, Any]
    """Values of JSON."""
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """Arrays of numbers and booleans."""


class Channel:
    """One side of the connection between the first rank and another rank. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket, *, timeout_s: float | None = None) -> None:
        """timeout_s: longest wait of `send` and `receive`; unlimited when None."""
        self._connection = connection
        self._lock = threading.Lock()
        connection.settimeout(timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Message) -> None:
        """Sends a message; blocks while the other side does not read. Raises: Unavailable when it is gone."""
        arrays = {name: np.ascontiguousarray(value) for name, value in message.arrays.items()}
        shapes = {name: [value.dtype.str, list(value.shape)] for name, value in arrays.items()}
        facts = json.dumps({"facts": message.facts, "arrays": shapes}).encode()
        try:
            with self._lock:
                self._connection.sendall(_LENGTH.pack(len(facts)) + facts)
                for value in arrays.values():
                    self._connection.sendall(value.reshape(-1).view(np.uint8).data)
        except OSError as problem:
            raise _gone(problem) from problem

    def receive(self) -> Message:
        """Returns the next message. Raises: Unavailable when the other side is gone; InvalidInput for other bytes."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size).tobytes())
        if length > _MAX_FACTS_BYTES:
            raise _invalid(f"its head has {length} bytes")
        try:
            head = json.loads(self._read(length).tobytes())
            facts, shapes = dict(head["facts"]), dict(head["arrays"])
            forms = {name: (np.dtype(dtype), tuple(map(int, shape))) for name, (dtype, shape) in shapes.items()}
        except (ValueError, KeyError, TypeError) as problem:
            raise _invalid(repr(problem)) from problem
        return Message(facts=facts, arrays={name: self._read_array(*form) for name, form in forms.items()})

    def set_timeout(self, timeout_s: float | None) -> None:
        """Sets the longest wait of `send` and `receive`; unlimited when None."""
        self._connection.settimeout(timeout_s)

    def close(self) -> None:
        """Closes the connection; the other side's `receive` raises Unavailable."""
        with contextlib.suppress(OSError):  # the other side has closed it
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _read_array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        if dtype.kind not in _NUMBERS or min(shape, default=0) < 0:
            raise _invalid(f"it has an array of type {dtype} and shape {shape}")
        return self._read(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)

    def _read(self, size: int) -> npt.NDArray[np.uint8]:
        data = np.empty(size, dtype=np.uint8)
        view = data.data
        while len(view):
            try:
                count = self._connection.recv_into(view)
            except OSError as problem:
                raise _gone(problem) from problem
            if not count:
                raise _gone("it closed the connection")
            view = view[count:]
        return data


def has_token(message: Message, token: str) -> bool:
    """Returns whether the message, the first of a connection, has the secret that ranks read from the store."""
    return hmac.compare_digest(str(message.facts.get("token", "")), token)


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
