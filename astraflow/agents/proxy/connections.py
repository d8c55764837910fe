"""HTTP connections of the proxy, with limits that uvicorn lacks: their number, time and size of headers, and time for
which a client does not read its answer."""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_CONNECTIONS = 4096
HEADER_LIMIT_S = 15.0
MAX_HEADER_BYTES = 65536
WRITE_LIMIT_S = 60.0
DISCONNECTED = "astraflow.disconnected"
"""Key of a `future` in the `extensions` of a request's scope, which is done when the client has disconnected. Waiting
for it costs no task, other than waiting for the message `http.disconnect`."""


class BoundedConnection(HttpToolsProtocol):
    """Connection that is closed when the headers of a request take too long or are too large, and when the client stops
    reading."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._write_deadline: asyncio.TimerHandle | None = None
        self._disconnected: asyncio.Future[None] = self.loop.create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Closes the connection at once when there are too many."""
        super().connection_made(cast("asyncio.Transport", _JoinedWrites(transport, self.loop)))
        if len(self.connections) > MAX_CONNECTIONS:
            transport.close()
        else:
            self._await_headers()

    def data_received(self, data: bytes) -> None:
        """Closes the connection when the headers are too large."""
        before = self.cycle
        if self._is_idle():
            self._header_bytes += len(data)
            self._await_headers()
        super().data_received(data)
        if self.cycle is not before:
            self._header_bytes = 0
        elif self._is_idle() and self._header_bytes > MAX_HEADER_BYTES:
            self.transport.close()

    def on_message_begin(self) -> None:
        """Tells the application how it learns that the client disconnects."""
        super().on_message_begin()
        self.scope["extensions"] = {DISCONNECTED: {"future": self._disconnected}}

    def connection_lost(self, problem: Exception | None) -> None:
        """Stops the timers, and tells the application."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._stop_write_deadline()
        self._disconnected.set_result(None)
        super().connection_lost(problem)

    def pause_writing(self) -> None:
        """Gives the client some time to read what is buffered."""
        super().pause_writing()
        if self._write_deadline is None:
            self._write_deadline = self.loop.call_later(WRITE_LIMIT_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Ends that time."""
        self._stop_write_deadline()
        super().resume_writing()

    def _stop_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def _is_idle(self) -> bool:
        """Whether no request is in progress whose headers are complete."""
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]  # None at first

    def _await_headers(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_LIMIT_S, self._check_headers, self.cycle)

    def _check_headers(self, before: Any) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self.cycle is before:
            self.transport.close()
        elif self._header_bytes:
            self._await_headers()


class _JoinedWrites:
    """Transport that sends what is written in one step of the event loop at once. uvicorn writes head and body of an
    answer separately: two system calls, and two wake-ups of the client."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pending: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Sends the data after this step of the event loop."""
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(data)

    def close(self) -> None:
        """Closes the connection when everything is sent."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        data, self._pending = b"".join(self._pending), []
        if data and not self._transport.is_closing():
            self._transport.write(data)
