"""A call that a test leaves open does not fail a later test."""

import asyncio
import socket
from contextlib import suppress
from typing import Any

import grpc
import pytest

from tests.event_loops import EventLoop


async def called(address: str, timeout_s: float) -> None:
    """Makes a call to a peer that never answers."""
    async with grpc.aio.insecure_channel(address) as channel:
        with suppress(grpc.aio.AioRpcError):
            call: Any = channel.unary_unary("/of.No/Service")
            await call(b"", timeout=timeout_s)


@pytest.mark.parametrize(("kind", "expected"), [(EventLoop, []), (asyncio.SelectorEventLoop, ["Event loop is closed"])])
def test_what_a_call_completes_after_its_loop_is_ignored_by_the_loops_of_tests(
    kind: type[asyncio.SelectorEventLoop], expected: list[str]
) -> None:
    problems: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        ended, later = kind(), kind()
        later.set_exception_handler(lambda _, context: problems.append(str(context["exception"])))
        left_open = ended.create_task(called(address, 0.1))
        for _ in range(10):
            ended.run_until_complete(asyncio.sleep(0))
        silent.accept()[0].close()  # waits for the connection of the call
        ended.close()
        later.run_until_complete(called(address, 0.3))
        later.close()
    assert problems == expected
    assert not left_open.done()
    left_open._log_destroy_pending = False  # type: ignore[attr-defined]  # that is the point
