"""A network link with faults: a TCP proxy on loopback that delays, stalls, tears and refuses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from soak.fault_plan import LinkFault

CHUNK_BYTES = 64 * 1024
DELAY_S = 0.15
"""Delay of every chunk on a delayed link, in seconds."""


class Link:
    """Link from clients to a service. `disturb` injects a fault for a while; a service that is down refuses."""

    def __init__(self, name: str, upstream: str) -> None:
        self.name = name
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))
        self._trouble: LinkFault | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._connections: set[_Connection] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self._is_down = False

    @asynccontextmanager
    async def serving(self, port: int = 0, *, host: str = "127.0.0.1") -> AsyncIterator[str]:
        """Accepts connections while the block runs; yields `HOST:PORT`."""
        server = await asyncio.start_server(self._take, host, port)
        try:
            host, bound = server.sockets[0].getsockname()
            yield f"{host}:{bound}"
        finally:
            server.close()
            self._open.set()
            self._break_all()
            await asyncio.gather(*self._carrying)

    async def disturb(self, trouble: LinkFault, for_s: float) -> None:
        """Injects this fault for this time, and ends the previous one."""
        self._begin(trouble)
        try:
            await asyncio.sleep(for_s)
        finally:
            if self._trouble is trouble:
                self._begin(None)
                if trouble is LinkFault.HALF_OPEN:
                    self._break_all()

    def set_down(self, is_down: bool) -> None:
        """Marks the service as down: breaks its connections and refuses new ones until it is back."""
        self._is_down = is_down
        if is_down:
            self._break_all()

    def _begin(self, trouble: LinkFault | None) -> None:
        self._trouble = trouble
        if trouble in (LinkFault.STALL, LinkFault.HALF_OPEN):
            self._open.clear()
        else:
            self._open.set()
        for connection in self._connections if trouble is LinkFault.TEAR else ():
            connection.tear()
        if trouble is LinkFault.REFUSE:
            self._break_all()

    def _break_all(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carrying = asyncio.create_task(self._carry(reader, writer))
        self._carrying.add(carrying)
        carrying.add_done_callback(self._carrying.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writer)
        self._connections.add(connection)
        try:
            if self._is_down or self._trouble is LinkFault.REFUSE:
                return
            onward_reader, onward = await asyncio.open_connection(*self._upstream)
            connection.join(onward)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, onward, connection))
                tasks.create_task(self._pump(onward_reader, writer, connection))
        except* OSError:
            pass  # broken connections are expected here
        finally:
            self._connections.discard(connection)
            connection.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: "_Connection") -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            if self._trouble is LinkFault.DELAY:
                await asyncio.sleep(DELAY_S)
            await self._open.wait()
            if pair.is_torn:
                writer.write(chunk[: len(chunk) // 2])
                await writer.drain()
                break
            writer.write(chunk)
            await writer.drain()
        pair.finish(writer)


class _Connection:
    """Both halves of one connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self._writers = [client]
        self._is_over = False
        self.is_torn = False

    def join(self, onward: asyncio.StreamWriter) -> None:
        """Adds the other half of the connection."""
        self._writers.append(onward)
        if self._is_over:
            self.abort()

    def tear(self) -> None:
        """Breaks the connection in the middle of the next data."""
        self.is_torn = True

    def finish(self, writer: asyncio.StreamWriter) -> None:
        """Records that one side has sent everything; a torn connection ends for both sides."""
        if self.is_torn:
            for each in self._writers:
                each.close()
        elif writer.can_write_eof() and not writer.is_closing():
            writer.write_eof()

    def abort(self) -> None:
        """Breaks the connection for both sides."""
        self._is_over = True
        for writer in self._writers:
            writer.transport.abort()
