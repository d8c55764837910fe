"""HTTP connections of the proxy, with limits that uvicorn lacks: their number, time and size of headers, and time for
which a client does not read its answer."""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

MAX_CONNECTIONS = 4096
HEADER_LIMIT_S = 15.0
MAX_HEADER_BYTES = 65536
WRITE_LIMIT_S = 60.0


class BoundedConnection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Connection that is closed when the headers of a request take too long or are too large, and when the client stops
    reading."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._write_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Closes the connection at once when there are too many."""
        super().connection_made(transport)
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

    def connection_lost(self, problem: Exception | None) -> None:
        """Stops the timers."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._stop_write_deadline()
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
        return self.cycle is None or self.cycle.response_complete

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
