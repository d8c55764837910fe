"""Bounds of what MCP servers send: their library reads lines and answers of any size."""

import sys
from collections.abc import AsyncIterator
from inspect import getsource

import httpx2

from astraflow.runtime.untrusted_json import PLAIN

MAX_MESSAGE_BYTES = 2**23
"""Longest message of a server. The text of a result is shorter."""
_TIMEOUT = httpx2.Timeout(30.0, read=300.0)
"""A server may hold the stream of its answers open."""


def http_client(headers: dict[str, str]) -> httpx2.AsyncClient:
    """Returns a client whose answers are not compressed, and end with an error beyond `MAX_MESSAGE_BYTES`. Streams of
    events have no end; their reader limits each event."""
    transport = _LimitedTransport(httpx2.AsyncHTTPTransport())
    return httpx2.AsyncClient(headers={**headers, **PLAIN}, timeout=_TIMEOUT, transport=transport, trust_env=False)


def limited_command(command: str, *arguments: str) -> tuple[str, list[str]]:
    """Returns the program and arguments which run a server and end it after a line beyond `MAX_MESSAGE_BYTES`."""
    program = f"{getsource(_relay_lines)}\n{_relay_lines.__name__}()"
    return sys.executable, ["-I", "-S", "-c", program, str(MAX_MESSAGE_BYTES), command, *arguments]


def _relay_lines() -> None:
    """Runs a server with the standard input of this process, and passes its lines on until one is too long.

    Runs as source in a process of its own, with the limit in bytes and the server's command as arguments.
    """
    import subprocess
    import sys

    limit = int(sys.argv[1])
    with subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE) as server:  # noqa: S603 (the command of the options)
        assert server.stdout is not None  # noqa: S101 (a pipe)
        while line := server.stdout.readline(limit + 1):
            if len(line) > limit:
                server.kill()
                sys.exit(f"the MCP server sent a line of more than {limit} bytes")
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        sys.exit(server.wait())


class _LimitedTransport(httpx2.AsyncBaseTransport):
    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        if "content-encoding" in response.headers:
            await response.aclose()
            raise httpx2.DecodingError("the answer is compressed, which was not asked for", request=request)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 (of an asynchronous transport)
            response.stream = _LimitedStream(response.stream, request)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, request: httpx2.Request) -> None:
        self._inner = inner
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            size += len(chunk)
            if size > MAX_MESSAGE_BYTES:
                raise httpx2.ReadError(f"the answer has more than {MAX_MESSAGE_BYTES} bytes", request=self._request)
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
