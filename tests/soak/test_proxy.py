"""A disturbed link shows its fault, and an undisturbed link none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from soak.fault_plan import LinkFault
from soak.proxy import Link

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def echo_behind_a_link() -> AsyncIterator[tuple[Link, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yields a connection to an echo service over a link."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(1024):
                writer.write(chunk)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    link = Link("here", f"{host}:{port}")
    async with server, link.serving() as address:
        door = address.rpartition(":")
        reader, writer = await asyncio.open_connection(door[0], int(door[2]))
        yield link, reader, writer
        writer.close()


async def echoed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, word: bytes) -> bytes:
    """Returns the echo of a word; empty when the connection breaks."""
    writer.write(word)
    try:
        return await reader.readexactly(len(word))
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


async def test_data_passes_in_both_directions() -> None:
    async with echo_behind_a_link() as (_, reader, writer):
        assert await echoed(reader, writer, b"hello") == b"hello"


async def test_a_stalled_link_delivers_everything_afterwards() -> None:
    async with echo_behind_a_link() as (link, reader, writer):
        stalled = asyncio.create_task(link.disturb(LinkFault.STALL, 0.2))
        await asyncio.sleep(0)
        answer = asyncio.create_task(echoed(reader, writer, b"hello"))
        await asyncio.wait({answer, stalled}, return_when=asyncio.FIRST_COMPLETED)
        assert stalled.done()
        assert not answer.done()
        assert await answer == b"hello"


async def test_a_delayed_link_delivers_everything() -> None:
    async with echo_behind_a_link() as (link, reader, writer):
        delayed = asyncio.create_task(link.disturb(LinkFault.DELAY, 0.5))
        await asyncio.sleep(0)
        assert await echoed(reader, writer, b"hello") == b"hello"
        await delayed


@pytest.mark.parametrize("trouble", [LinkFault.HALF_OPEN, LinkFault.TEAR, LinkFault.REFUSE])
async def test_other_link_faults_break_the_connection(trouble: LinkFault) -> None:
    async with echo_behind_a_link() as (link, reader, writer):
        assert await echoed(reader, writer, b"hello") == b"hello"
        troubled = asyncio.create_task(link.disturb(trouble, 0.1))
        await asyncio.sleep(0)
        assert await echoed(reader, writer, b"hello") == b""
        await troubled


async def test_a_link_that_is_down_refuses_connections_until_it_is_up() -> None:
    async with echo_behind_a_link() as (link, reader, writer):
        assert await echoed(reader, writer, b"hello") == b"hello"
        link.set_down(True)
        assert await echoed(reader, writer, b"hello") == b""
        link.set_down(False)
        async with link.serving() as address:
            door = address.rpartition(":")
            again = await asyncio.open_connection(door[0], int(door[2]))
            assert await echoed(*again, b"hello") == b"hello"
            again[1].close()
