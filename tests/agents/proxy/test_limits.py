"""Limits of the proxy: bodies, slow clients, connections and garbage."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from astraflow.agents.proxy import connections as proxy_connections
from astraflow.agents.proxy import requests as proxy_requests
from astraflow.agents.proxy.server import AgentProxy
from astraflow.contract.rollouts.agent_calls import CallOutcome
from tests.fakes.agent_handlers import ScriptedHandler, eventually, text_reply

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
HELLO: Any = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
async def proxy() -> AsyncIterator[AgentProxy]:
    proxy = AgentProxy()
    await proxy.start()
    yield proxy
    await proxy.close()


async def test_bodies_that_are_too_large_are_refused_and_the_connection_goes_on(
    proxy: AgentProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_requests, "MAX_BODY_BYTES", 2**20)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 2**15

    async with proxy.session(ScriptedHandler()) as access, httpx.AsyncClient(base_url=access.url) as client:
        for content in (b" " * (2**20 + 1), chunks()):
            answer = await client.post(CHAT, content=content)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "agent.body_too_large")
        assert (await client.post(CHAT, content=b" " * 2**20)).status_code == 400
        assert (await client.post(CHAT, json=HELLO)).status_code == 200
        assert (await client.post(CHAT, content=b"x" * 2**21, headers={"host": "x"})).status_code == 413
        unknown = await client.post(f"{proxy.origin}{CHAT}", content=b" " * 2**22)
        assert unknown.status_code == 401


async def test_bodies_of_parallel_calls_are_bounded_together(
    proxy: AgentProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_requests, "MAX_SESSION_BODY_BYTES", 3 * 2**20)
    release = asyncio.Event()

    async def wait(_: Any) -> Any:
        await release.wait()
        return text_reply("x")

    handler = ScriptedHandler(wait)
    body = {"messages": [{"role": "user", "content": "x" * 2**20}]}
    async with proxy.session(handler) as access, httpx.AsyncClient(base_url=access.url) as client:
        calls = [asyncio.create_task(client.post(CHAT, json=body)) for _ in range(2)]
        await eventually(lambda: handler.waiting == 2)
        busy = await client.post(CHAT, json=body)
        assert (busy.status_code, busy.json()["error"]["code"]) == (429, "agent.bodies_too_large")
        release.set()
        assert [answer.status_code for answer in await asyncio.gather(*calls)] == [200, 200]
        assert (await client.post(CHAT, json=body)).status_code == 200


async def send_raw(origin: str, *parts: bytes) -> bytes:
    """Returns what the server sends until it closes the connection; each part but the first follows some answer."""
    host, port = origin.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answer = b""
    try:
        async with asyncio.timeout(30):
            for part in parts[:-1]:
                writer.write(part)
                answer += await reader.read(2**16)
            writer.write(parts[-1])
            return answer + await reader.read()
    except ConnectionResetError:
        return answer
    finally:
        writer.close()


async def test_slow_clients_are_disconnected(proxy: AgentProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_connections, "HEADER_LIMIT_S", 0.1)
    monkeypatch.setattr(proxy_requests, "BODY_LIMIT_S", 0.1)
    async with proxy.session(ScriptedHandler()) as access:
        headers = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {access.secret}\r\n".encode()
        assert await send_raw(proxy.origin, b"") == b""
        assert await send_raw(proxy.origin, headers) == b""
        answer = await send_raw(proxy.origin, headers + b"Content-Length: 10\r\n\r\n{")
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"agent.body_too_slow" in answer
        unknown = await send_raw(proxy.origin, b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        assert unknown.startswith(b"HTTP/1.1 401")
        # The second request on a connection never completes its headers.
        models = headers.replace(b"POST " + CHAT.encode(), b"GET /v1/models")
        answer = await send_raw(proxy.origin, models + b"\r\n", models)
        assert answer.count(b"HTTP/1.1 200") == 1


async def test_clients_that_do_not_read_are_disconnected(proxy: AgentProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_connections, "WRITE_LIMIT_S", 0.0)
    size = 32 * 2**20  # more than the kernel buffers
    async with proxy.session(ScriptedHandler(lambda _: text_reply("x" * size))) as access:
        body = orjson.dumps(HELLO)
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-api-key: {access.secret}\r\ncontent-length: {len(body)}\r\n\r\n"
        answer = await send_raw(proxy.origin, head.encode() + body)
        assert len(answer) < size
        assert access.record[0][0].outcome is CallOutcome.ANSWERED


async def test_headers_that_are_too_large_close_the_connection(proxy: AgentProxy) -> None:
    request = b"GET /v1/models HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 1000) for i in range(200))
    answer = await send_raw(proxy.origin, request)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")


async def test_connections_are_bounded(proxy: AgentProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_connections, "MAX_CONNECTIONS", 1)
    async with proxy.session(ScriptedHandler()) as access, httpx.AsyncClient(base_url=access.url) as client:
        assert (await client.get("/v1/models")).status_code == 200
        assert await send_raw(proxy.origin, b"") == b""
        assert (await client.get("/v1/models")).status_code == 200


async def test_garbage_never_makes_a_server_error(proxy: AgentProxy) -> None:
    async with proxy.session(ScriptedHandler()) as access:
        key = f"Host: x\r\nx-api-key: {access.secret}\r\n".encode()
        for data in (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
            b"GET / HTTP/9.9\r\nConnection: close\r\n\r\n",
            b"POST \xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
            b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"POST /v1/messages HTTP/1.1\r\nConnection: close\r\n" + key + b"Content-Length: 2\r\n\r\n\xff\xff",
            b"GET /v1/models HTTP/1.0\r\n" + key + b"\r\n",
            b"GET /%zz/v1/models HTTP/1.1\r\nConnection: close\r\n" + key + b"\r\n",
            b"GET /v1/models HTTP/1.1\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n" + key + b"\r\n",
        ):
            answer = await send_raw(proxy.origin, data)
            assert not answer.startswith(b"HTTP/1.1 5"), data
