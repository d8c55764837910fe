"""An HTTP/2 peer that opens as many streams as allowed, sends all but the last byte of their messages within the
windows, and reads nothing.

It follows the protocol, so the server has no violation to close it for, and holds no message in memory.
"""

import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES = 9
_FRAME_BYTES = 2**14
_DEFAULT_WINDOW = 2**16 - 1
_END_HEADERS, _ACK = 4, 1
_MAX_STREAMS, _INITIAL_WINDOW = 3, 4
"""Keys of settings."""

_NOT_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Kind(IntEnum):
    """Frame types."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8


class Http2Flood:
    """One connection. `is_closed`: the server closed it; `ended`: the streams that the server ended."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""
        self._to_send = bytearray(_PREFACE + _frame(Kind.SETTINGS, 0, 0, b""))
        self._window = self._initial = _DEFAULT_WINDOW
        self._windows: dict[int, int] = {}
        self._left: dict[int, int] = {}
        self._next = 1
        self.most_streams = 2**31
        self.sent_bytes = 0
        self.is_closed = False
        self.ended: list[int] = []
        self.is_settled = False
        connection.setblocking(False)

    def request(self, path: str, metadata: Sequence[tuple[str, str]], *, message_bytes: int) -> bool:
        """Begins a call whose message has this length. Returns False when the server allows no more streams."""
        if len(self._windows) >= self.most_streams:
            return False
        fields = ((":method", "POST"), (":scheme", "https"), (":path", path), (":authority", "localhost"))
        named = (*fields, ("content-type", "application/grpc"), ("te", "trailers"), *metadata)  # codespell:ignore te
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in named)
        prefix = b"\0" + struct.pack(">I", message_bytes)
        self._to_send += _frame(Kind.HEADERS, _END_HEADERS, self._next, block)
        self._to_send += _frame(Kind.DATA, 0, self._next, prefix)
        self._windows[self._next] = self._initial - len(prefix)
        self._left[self._next] = message_bytes - 1
        self._window -= len(prefix)
        self._next += 2
        return True

    def send(self, *, for_s: float, at_most_bytes: int) -> None:
        """Sends within the windows until the time is up, this much was sent, or the server closed the connection."""
        until = time.monotonic() + for_s
        while not self.is_closed and time.monotonic() < until and self.sent_bytes < at_most_bytes:
            if not self._to_send:
                self._fill()
            self._turn()

    def drip(self) -> None:
        """Sends one byte of each message."""
        for stream, window in self._windows.items():
            if min(window, self._window, self._left[stream]) > 0:
                self._send_data(stream, 1)

    def listen(self, until: Callable[[], bool], *, give_up_after_s: float = 30.0) -> None:
        """Sends no message data until a condition holds. Raises: TimeoutError."""
        deadline = time.monotonic() + give_up_after_s
        while not until():
            if time.monotonic() > deadline:
                raise TimeoutError
            self._turn()

    def _turn(self) -> None:
        readable, _, _ = select.select([self._connection], [self._connection] if self._to_send else [], [], 0.02)
        if readable and not self.is_closed:
            self._read()
        if self._to_send and not self.is_closed:
            self._write()

    def _fill(self) -> None:
        for stream, window in self._windows.items():
            size = min(window, self._window, _FRAME_BYTES, self._left[stream])
            if size > 0:
                self._send_data(stream, size)

    def _send_data(self, stream: int, size: int) -> None:
        self._to_send += _frame(Kind.DATA, 0, stream, bytes(size))
        self._windows[stream] -= size
        self._left[stream] -= size
        self._window -= size
        self.sent_bytes += size

    def _write(self) -> None:
        try:
            del self._to_send[: self._connection.send(self._to_send)]
        except _NOT_YET:
            return
        except OSError:
            self.is_closed = True

    def _read(self) -> None:
        with suppress(*_NOT_YET):
            try:
                received = self._connection.recv(2**18)
            except (ConnectionError, ssl.SSLEOFError):
                received = b""
            self.is_closed = not received
            self._received += received
        for kind, flags, stream, payload in self._frames():
            self._take(kind, flags, stream, payload)

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        while len(self._received) >= _HEAD_BYTES:
            size = int.from_bytes(self._received[:3], "big")
            if len(self._received) < _HEAD_BYTES + size:
                return
            kind, flags, stream = struct.unpack(">BBI", self._received[3:_HEAD_BYTES])
            payload, self._received = (
                self._received[_HEAD_BYTES : _HEAD_BYTES + size],
                self._received[_HEAD_BYTES + size :],
            )
            yield kind, flags, stream, payload

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == Kind.SETTINGS and not flags & _ACK:
            for key, value in struct.iter_unpack(">HI", payload):
                self._set(key, value)
            self.is_settled = True
            self._to_send += _frame(Kind.SETTINGS, _ACK, 0, b"")
        elif kind == Kind.PING and not flags & _ACK:
            self._to_send += _frame(Kind.PING, _ACK, 0, payload)
        elif kind == Kind.WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if stream == 0:
                self._window += more
            elif stream in self._windows:
                self._windows[stream] += more
        elif kind == Kind.RST_STREAM or (kind == Kind.HEADERS and flags & 1):
            self._windows.pop(stream, None)
            self.ended.append(stream)

    def _set(self, key: int, value: int) -> None:
        if key == _MAX_STREAMS:
            self.most_streams = value
        if key == _INITIAL_WINDOW:
            self._windows = {stream: window + value - self._initial for stream, window in self._windows.items()}
            self._initial = value


def _frame(kind: Kind, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _text(text: str) -> bytes:
    """Encodes a text in HPACK without compression."""
    size = len(text)
    if size < 127:
        return bytes([size]) + text.encode()
    left, digits = size - 127, bytearray(b"\x7f")
    while left > 127:
        digits.append(left & 127 | 128)
        left >>= 7
    digits.append(left)
    return bytes(digits) + text.encode()
