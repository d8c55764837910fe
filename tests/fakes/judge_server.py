"""Small server of `/v1/chat/completions` that judges by a function of the prompt, with faults that a test queues."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

TOKENS = 100
"""Tokens that each reply reports."""


class JudgeServer:
    """Replies with `judge(prompt)`."""

    def __init__(self, judge: Callable[[str], str]) -> None:
        self.judge = judge
        self.faults: deque[Callable[[], web.StreamResponse]] = deque()
        """Each answers one request instead of the judge."""
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.url = ""

    @property
    def prompts(self) -> list[str]:
        """Prompts of the requests so far."""
        return [request["messages"][0]["content"] for request in self.requests]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["JudgeServer"]:
        """Listens on a free port while the block runs."""
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", self._complete)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.keys.append(request.headers.get("Authorization", ""))
        if self.faults:
            return self.faults.popleft()()
        reply = self.judge(body["messages"][0]["content"])
        return web.json_response({"choices": [{"message": {"content": reply}}], "usage": {"total_tokens": TOKENS}})
