"""Servers of bridges answer their own process and no web page."""

from typing import Any

import httpx
import pytest

from astraflow.environments.foreign.bridges.serving import LoopbackOnly

pytestmark = pytest.mark.anyio


async def welcome(_scope: dict[str, Any], _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"welcome"})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_requests_of_web_pages_are_refused(headers: dict[str, str], status: int) -> None:
    transport = httpx.ASGITransport(LoopbackOnly(welcome))  # type: ignore[arg-type]  # narrower types than httpx has
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:80") as client:
        answer = await client.get("/", headers=headers)
    assert answer.status_code == status


async def test_sessions_of_web_pages_are_refused() -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "websocket", "headers": [(b"host", b"127.0.0.1:1"), (b"origin", b"https://evil.example")]}
    await LoopbackOnly(welcome)(scope, None, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
