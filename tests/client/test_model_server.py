"""Errors of a server become errors of the client; only repeatable requests are sent again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest
from aiohttp import web

from astraflow.client.model_server import ServerClient, ServerRefused, ServerUnreachable
from tests.errors import raises_code

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def client_of(handler: Handler, *, key: str = "") -> AsyncIterator[ServerClient]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    client = ServerClient(f"http://{host}:{port}", key=key)
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()


async def cut(request: web.Request) -> web.Response:
    """Closes the connection without an answer."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


@pytest.mark.anyio
async def test_arrays_are_sent_as_json_with_the_key_and_the_query() -> None:
    async def handle(request: web.Request) -> web.Response:
        query, key = dict(request.query), request.headers["Authorization"]
        return web.json_response({"query": query, "key": key, "body": await request.json()})

    async with client_of(handle, key="secret") as client:
        body = {"input_ids": np.array([1, 2], dtype=np.int32)}
        answer = await client.post("/generate", body, query={"mode": "keep"}, limit_s=5)

    assert answer == {"query": {"mode": "keep"}, "key": "Bearer secret", "body": {"input_ids": [1, 2]}}


@pytest.mark.anyio
async def test_empty_and_plain_answers_are_none_and_text() -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(text="" if request.path == "/empty" else "Cache flushed.")

    async with client_of(handle) as client:
        assert await client.post("/empty", limit_s=5) is None
        assert await client.post("/text", limit_s=5) == "Cache flushed."


@pytest.mark.anyio
async def test_an_error_status_is_refused_with_the_start_of_the_text() -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(status=503, text="overloaded" + "x" * 10_000)

    async with client_of(handle) as client:
        with raises_code(ServerRefused, "engine.server_refused", "/generate", "503", "overloaded") as caught:
            await client.post("/generate", limit_s=5)

    assert caught.value.status == 503
    assert len(str(caught.value)) < 1000


@pytest.mark.anyio
async def test_only_repeatable_requests_are_retried_on_a_closed_connection() -> None:
    requests = 0

    async def handle(request: web.Request) -> web.Response:
        nonlocal requests
        requests += 1
        return await cut(request) if requests % 2 else web.json_response({"ok": True})

    async with client_of(handle) as client:
        assert await client.post("/pause", limit_s=5, is_repeatable=True) == {"ok": True}
        assert requests == 2
        with raises_code(ServerUnreachable, "engine.server_unreachable", "/generate"):
            await client.post("/generate", limit_s=5)
        assert requests == 3


@pytest.mark.anyio
async def test_a_second_closed_connection_is_an_error() -> None:
    async with client_of(cut) as client:
        with raises_code(ServerUnreachable, "engine.server_unreachable", "/pause"):
            await client.post("/pause", limit_s=5, is_repeatable=True)


@pytest.mark.anyio
async def test_a_stopped_server_is_unreachable() -> None:
    async with client_of(cut) as client:
        pass
    gone = ServerClient(client.base_url)
    try:
        with raises_code(ServerUnreachable, "engine.server_unreachable", client.base_url):
            await gone.get("/model_info", limit_s=5)
    finally:
        await gone.close()


@pytest.mark.anyio
async def test_a_request_ends_at_its_time_limit() -> None:
    async def handle(request: web.Request) -> web.Response:
        await asyncio.sleep(0.3)
        return web.Response()

    async with client_of(handle) as client:
        with pytest.raises(TimeoutError):
            await client.post("/pause", limit_s=0.05, is_repeatable=True)
