"""A small outgoing HTTP proxy as a process of its own: it only tunnels (CONNECT), to the ports that a test names.

`python -m tests.fakes.connect_proxy NAME:443=PORT ...` prints its own port, then each request.
"""

import asyncio
import base64
import sys
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

PASSWORD = "canary-proxy-password"


class ConnectProxy:
    """A running proxy."""

    def __init__(self, port: int, output: StreamReader) -> None:
        self.url = f"http://someone:{PASSWORD}@127.0.0.1:{port}"
        self._output = output

    async def next_request(self) -> str:
        """Returns the next request: its target, and the status of the answer."""
        async with asyncio.timeout(30):
            return (await self._output.readline()).decode().strip()


@asynccontextmanager
async def connect_proxy(**ports: int) -> AsyncIterator[ConnectProxy]:
    """Runs a proxy until the block ends. ports: local port of each `NAME:PORT`."""
    command = (sys.executable, "-m", "tests.fakes.connect_proxy", *(f"{name}={port}" for name, port in ports.items()))
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            port = int(await process.stdout.readline())
        yield ConnectProxy(port, process.stdout)
    finally:
        process.kill()
        await process.wait()


async def _serve(ports: dict[str, int]) -> None:
    expected = "Basic " + base64.b64encode(f"someone:{PASSWORD}".encode()).decode()

    async def tunnel(reader: StreamReader, writer: StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split(" ", 2)
        is_known = expected in head
        status = 200 if method == "CONNECT" and is_known and target in ports else 403 if is_known else 407
        print(target, status, flush=True)  # noqa: T201 (what the test reads)
        writer.write(f"HTTP/1.1 {status} -\r\n{'' if status == 200 else 'Content-Length: 0'}\r\n\r\n".encode())
        if status == 200:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", ports[target])
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        writer.close()

    server = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 (as above)
    await server.serve_forever()


async def _copy(reader: StreamReader, writer: StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(_serve({name: int(port) for name, _, port in (word.rpartition("=") for word in sys.argv[1:])}))
