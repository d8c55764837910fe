"""Forwarding of connections between network namespaces.

As a program, `forwarding.py PORT SOCKET` forwards a port of 127.0.0.1 to a Unix socket, in the background once it
listens. It is sent as source to containers, so it needs the standard library of Python 3.9 and nothing else.
"""

from __future__ import annotations  # for Python 3.9

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_MAX_CONNECTIONS = 64
"""Connections of a session at once; further ones are closed."""
_CHUNK_BYTES = 2**16


@asynccontextmanager
async def forwarded(listener: socket.socket, target: int | str) -> AsyncIterator[None]:
    """Forwards each connection that arrives at `listener` while the block runs.

    target: port of 127.0.0.1, or path of a Unix socket.
    """
    connections: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) >= _MAX_CONNECTIONS:
            writer.close()
            return
        connection = asyncio.create_task(_forward(reader, writer, target))
        connections.add(connection)
        connection.add_done_callback(connections.discard)
        connection.add_done_callback(lambda _: writer.close())  # also of a task that was cancelled before it began

    start = asyncio.start_unix_server if listener.family == socket.AF_UNIX else asyncio.start_server
    server = await start(accept, sock=listener, limit=_CHUNK_BYTES)
    try:
        yield
    finally:
        server.close()
        for connection in list(connections):
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int | str) -> None:
    """Copies both directions until either side ends its part, then closes both: an HTTP client that shuts down its
    sending side has gone."""
    copies: list[asyncio.Task[None]] = []
    writers = [writer]
    try:
        target_reader, target_writer = await _connected(target)
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


async def _connected(target: int | str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(target, int):
        return await asyncio.open_connection("127.0.0.1", target, limit=_CHUNK_BYTES)
    return await asyncio.open_unix_connection(target, limit=_CHUNK_BYTES)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # the other side left
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()


def main() -> None:
    """Listens, and forwards in a process of its own, so that the caller knows when connections are accepted."""
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    if os.fork():
        os._exit(0)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    asyncio.run(_forward_all(listener, sys.argv[2]))


async def _forward_all(listener: socket.socket, target: str) -> None:
    async with forwarded(listener, target):
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
