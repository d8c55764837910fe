"""Weight store that serves over real gRPC, for tests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.weights.config import WeightsConfig
from astraflow.weights.service import running
from astraflow.weights.signing import VerifyingKey
from astraflow.wire.channel import dial
from astraflow.wire.server import ListenOptions

CONFIG = WeightsConfig(retained_versions=4, full_snapshot_every=2)
TOKEN = "token"
dialling = partial(dial, token=TOKEN)
"""Opens a link to an address, as `HeldCredential.dial` does."""


@asynccontextmanager
async def weight_store(
    directory: Path,
    *,
    port: int = 0,
    config: WeightsConfig = CONFIG,
    drain_s: float = 0.2,
    clock: Clock | None = None,
    trusted: VerifyingKey | None = None,
) -> AsyncIterator[str]:
    """Serves a store and yields its address."""
    listen = ListenOptions(port=port, token=TOKEN, drain_s=drain_s)
    async with running(config, listen=listen, directory=directory, clock=clock, trusted=trusted) as address:
        yield address


@asynccontextmanager
async def client_of(address: str) -> AsyncIterator[WeightPlaneClient]:
    """Opens a client of the store at an address."""
    async with dial(address, token=TOKEN) as link:
        yield WeightPlaneClient(link)


class BriskClock(SystemClock):
    """Waits at most 10 ms, so that retries cost a test no time."""

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(min(duration_s, 0.01))


class Wire:
    """TCP relay in front of a server: forwards a number of bytes from the server, then cuts every connection."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._server = (host, int(port))
        self._writers: set[asyncio.StreamWriter] = set()
        self._left_bytes: int | None = None
        self._every_bytes: int | None = None
        self.cuts = 0
        self.connections = 0

    def cut_after(self, size_bytes: int) -> None:
        """Cuts once after that many more bytes from the server."""
        self._left_bytes = size_bytes

    def cut_every(self, size_bytes: int) -> None:
        """Cuts each time that many bytes have come from the server since the last cut."""
        self._left_bytes = self._every_bytes = size_bytes

    @asynccontextmanager
    async def strung(self) -> AsyncIterator[str]:
        """Runs the relay and yields its address."""
        server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        try:
            yield f"{host}:{port}"
        finally:
            server.close()
            self._cut()
            await server.wait_closed()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        server_reader, server_writer = await asyncio.open_connection(*self._server)
        self._writers |= {writer, server_writer}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, server_writer, counted=False))
                tasks.create_task(self._pump(server_reader, writer, counted=True))
        finally:
            self._writers -= {writer, server_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool) -> None:
        try:
            while data := await reader.read(4096):
                if counted and self._left_bytes is not None:
                    self._left_bytes -= len(data)
                    if self._left_bytes < 0:
                        self._left_bytes = self._every_bytes
                        self.cuts += 1
                        self._cut()
                        return
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            return
        finally:
            writer.close()

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
