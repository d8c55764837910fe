"""Forwarding of a port in a session's network namespace to the same port of this machine."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_MAX_CONNECTIONS = 64
"""Connections of a session at once; further ones are closed."""
_CHUNK_BYTES = 2**16


@asynccontextmanager
async def forwarded(listener: socket.socket, port: int) -> AsyncIterator[None]:
    """Forwards each connection that arrives at `listener` to `port` of 127.0.0.1, while the block runs."""
    connections: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) >= _MAX_CONNECTIONS:
            writer.close()
            return
        connection = asyncio.create_task(_forward(reader, writer, port))
        connections.add(connection)
        connection.add_done_callback(connections.discard)
        connection.add_done_callback(lambda _: writer.close())  # also of a task that was cancelled before it began

    server = await asyncio.start_server(accept, sock=listener, limit=_CHUNK_BYTES)
    try:
        yield
    finally:
        server.close()
        for connection in list(connections):
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Copies both directions until either side ends its part, then closes both: an HTTP client that shuts down its
    sending side has gone."""
    copies: list[asyncio.Task[None]] = []
    writers = [writer]
    try:
        target_reader, target_writer = await asyncio.open_connection("127.0.0.1", port, limit=_CHUNK_BYTES)
        writers.append(target_writer)
        copies += [asyncio.create_task(_copy(reader, target_writer)), asyncio.create_task(_copy(target_reader, writer))]
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    except OSError:  # the program sees a closed connection, as for every server that is down
        return
    finally:
        for end in writers:
            end.close()  # before the wait, which the end of the session may cancel
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # the other side left
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
