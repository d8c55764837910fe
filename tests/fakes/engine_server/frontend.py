"""Frontend process of a simulated engine: HTTP/1.1 with keep-alive, injected faults, and the connection to the core."""

import asyncio
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

EXIT_AFTER_S = 0.3
"""Seconds from the end of the core to the end of the server; the real ones take 3 to 7 s."""


class HttpError(Exception):
    """Answer with an error status."""

    def __init__(self, status: int, content: Any) -> None:
        super().__init__(status)
        self.status = status
        self.content = content


class CoreDead(Exception):
    """The core ended before it answered."""


@dataclass(frozen=True)
class Call:
    """Parsed request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


Handler = Callable[[Call], Awaitable[Any]]
"""Returns the JSON answer; a string is sent as plain text, None as an empty body."""


class CoreClient:
    """Calls the core process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.gauges: dict[str, float] = {}
        self.is_ready = asyncio.Event()
        self.is_dead = asyncio.Event()

    async def run(self) -> None:
        """Reads answers until the core ends; calls in flight then raise CoreDead."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._connection, limit=2**24)
        while line := await _line_or_end(reader):
            message = json.loads(line)
            if "gauges" in message:
                self.gauges = message["gauges"]
                self.is_ready.set()
                continue
            future = self._waiting.pop(message["id"])
            if future.cancelled():
                continue
            if "error" in message:
                future.set_exception(HttpError(400 if message["is_refused"] else 500, message["error"]))
            else:
                future.set_result(message["result"])
        self.is_dead.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(CoreDead())

    async def call(self, name: str, **arguments: Any) -> Any:
        """Returns the result. Raises: HttpError, CoreDead."""
        if self.is_dead.is_set() or self._writer is None:
            raise CoreDead
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps({"id": number, "call": name, **arguments}).encode() + b"\n")
        return await future


class Faults:
    """Injected faults: a JSON file `{"start": ..., "routes": {PATH: {...}}}`, read at each request.

    A fault of a route has `times` (count), and one of `status` (error answer without an effect), `answer` (with
    `after`: sent after the effect), `drop` (the connection is closed without an answer) and `hang_s`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def start(self) -> Mapping[str, Any]:
        """Fault of the start: `{"exit": CODE}`, `{"delay_s": SECONDS}` or empty."""
        start: Mapping[str, Any] = self._read().get("start", {})
        return start

    def take(self, path: str) -> Mapping[str, Any]:
        """Returns the fault of a route, and counts it."""
        content = self._read()
        fault: dict[str, Any] = content.get("routes", {}).get(path, {})
        if not fault or fault.get("times", 1) < 1:
            return {}
        fault["times"] = fault.get("times", 1) - 1
        partial = self._path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(content))
        partial.replace(self._path)
        return fault

    def _read(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
        return content


class Frontend:
    """Serves routes."""

    def __init__(
        self,
        routes: Mapping[tuple[str, str], Handler],
        core: CoreClient,
        faults: Faults,
        *,
        is_open: Callable[[str], bool],
        key: str,
        dies_silently: bool,
    ) -> None:
        """is_open: whether a path needs no key. dies_silently: requests to a dead core get no answer, not 500."""
        self._routes = routes
        self._core = core
        self._faults = faults
        self._is_open = is_open
        self._key = key
        self._dies_silently = dies_silently

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection."""
        try:
            while call := await _read_call(reader):
                status, content = await self._answer(call)
                if status == 0:
                    break
                writer.write(_response(status, content))
                await writer.drain()
                if status >= 500:
                    break  # as uvicorn does, without announcing it
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, call: Call) -> tuple[int, Any]:
        if not self._is_open(call.path) and call.headers.get("authorization") != f"Bearer {self._key}":
            return 401, {"error": "Unauthorized"}
        handler = self._routes.get((call.method, call.path))
        if handler is None:
            return 404, {"detail": "Not Found"}
        fault = self._faults.take(call.path)
        if "hang_s" in fault:
            await asyncio.sleep(fault["hang_s"])
        if fault.get("drop"):
            return 0, None
        if "status" in fault and not fault.get("after"):
            return fault["status"], fault.get("answer", {"error": "injected"})
        try:
            status, content = 200, await handler(call)
        except HttpError as problem:
            return problem.status, problem.content
        except CoreDead:
            if not self._dies_silently:
                return 500, {"error": {"message": "EngineCore encountered an issue", "type": "InternalServerError"}}
            await asyncio.sleep(EXIT_AFTER_S * 2)
            return 0, None
        return (fault["status"], fault["answer"]) if fault.get("after") else (status, content)


def run_frontend(
    connection: socket.socket, make: Callable[[CoreClient], Frontend], faults: Faults, *, port: int
) -> None:
    """Runs until the core ends."""
    time.sleep(faults.start.get("delay_s", 0.0))

    async def main() -> None:
        core = CoreClient(connection)
        reading = asyncio.create_task(core.run())
        await core.is_ready.wait()
        server = await asyncio.start_server(make(core).handle, "127.0.0.1", port, limit=2**22)
        print(f"Uvicorn running on port {port}", flush=True)  # noqa: T201 (log of the server)
        async with server:
            await core.is_dead.wait()
            print("core died unexpectedly", flush=True)  # noqa: T201 (log of the server)
            await asyncio.sleep(EXIT_AFTER_S)
            reading.cancel()
            os._exit(1)

    asyncio.run(main())


async def _line_or_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ConnectionError:
        return b""


async def _read_call(reader: asyncio.StreamReader) -> Call | None:
    start = await _line_or_end(reader)
    if not start:
        return None
    method, target, _ = start.decode().split(" ", 2)
    headers = {}
    while (line := (await reader.readline()).strip()) != b"":
        name, _, value = line.decode().partition(":")
        headers[name.strip().lower()] = value.strip()
    payload = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    return Call(method, parts.path, dict(parse_qsl(parts.query)), headers, json.loads(payload) if payload else None)


def _response(status: int, content: Any) -> bytes:
    if content is None:
        kind, payload = "text/plain", b""
    elif isinstance(content, str):
        kind, payload = "text/plain; charset=utf-8", content.encode()
    else:
        kind, payload = "application/json", json.dumps(content).encode()
    head = f"HTTP/1.1 {status} Answer\r\ncontent-type: {kind}\r\ncontent-length: {len(payload)}\r\n\r\n"
    return head.encode() + payload
