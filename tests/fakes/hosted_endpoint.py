"""A hosted endpoint of Chat Completions and of Messages whose replies follow from the last message, with faults."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from astraflow.runtime.http.server import listening, serving_http, url_of

KEY = "sk-secret-key-of-the-test"
PROMPT_TOKENS, COMPLETION_TOKENS, CACHED_TOKENS = 11, 7, 3
"""Usage that each reply reports."""

Reply = dict[str, Any]
"""`content`, and optionally `reasoning_content`, `tool_calls` and `finish_reason`."""


class HostedEndpoint:
    """Endpoint whose replies are `reply(body)`."""

    def __init__(self, reply: Callable[[dict[str, Any]], Reply]) -> None:
        self.reply = reply
        self.base_url = ""
        self.faults: deque[Callable[[], Response]] = deque()
        """Each answers one request instead of the model."""
        self.fault_every: dict[int, Callable[[], Response]] = {}
        """Answers every n-th request likewise."""
        self.delays_s: deque[float] = deque()
        """Each delays one request."""
        self.requests: list[dict[str, Any]] = []
        self.running = self.most_running = 0
        """Requests in progress, and the most at the same time."""
        self.began = asyncio.Event()
        """Set when a request has begun."""

    async def answer(self, request: Request) -> Response:
        """Handles a request of both APIs."""
        is_chat = request.url.path.endswith("/chat/completions")
        credential = request.headers.get("authorization" if is_chat else "x-api-key", "")
        if credential.removeprefix("Bearer ") != KEY:
            return JSONResponse({"error": {"message": f"incorrect API key: {credential}"}}, status_code=401)
        body = await request.json()
        self.requests.append(body)
        self.began.set()
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if self.delays_s:
                await asyncio.sleep(self.delays_s.popleft())
            if self.faults:
                return self.faults.popleft()()
            for every, fault in self.fault_every.items():
                if len(self.requests) % every == 0:
                    return fault()
            reply = self.reply(body)
            return JSONResponse(_chat(reply) if is_chat else _messages(reply))
        finally:
            self.running -= 1


def failing(status: int, **headers: str) -> Callable[[], Response]:
    """Returns a fault with this status."""
    return lambda: JSONResponse({"error": {"message": "not now"}}, status_code=status, headers=headers)


def nonsense() -> Response:
    """Returns an answer that is no reply."""
    return Response(b"<html>Bad gateway \xff</html>", media_type="text/html")


@asynccontextmanager
async def hosted(reply: Callable[[dict[str, Any]], Reply]) -> AsyncIterator[HostedEndpoint]:
    """Serves on a free port until the block ends."""
    endpoint = HostedEndpoint(reply)
    paths = ("/v1/chat/completions", "/v1/messages")
    app = Starlette(routes=[Route(path, endpoint.answer, methods=["POST"]) for path in paths])
    with listening("127.0.0.1", 0) as listener:
        async with serving_http(app, listener):
            endpoint.base_url = url_of(listener, "127.0.0.1") + "/v1"
            yield endpoint


def _chat(reply: Reply) -> dict[str, Any]:
    calls = reply.get("tool_calls")
    message = {"role": "assistant", **{key: value for key, value in reply.items() if key != "finish_reason"}}
    return {
        "choices": [
            {"message": message, "finish_reason": reply.get("finish_reason", "tool_calls" if calls else "stop")}
        ],
        "usage": {
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": COMPLETION_TOKENS,
            "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
        },
    }


def _messages(reply: Reply) -> dict[str, Any]:
    thoughts = reply.get("reasoning_content")
    blocks: list[dict[str, Any]] = [{"type": "thinking", "thinking": thoughts, "signature": ""}] if thoughts else []
    blocks += [{"type": "text", "text": reply["content"]}] if reply.get("content") else []
    blocks += [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": json.loads(call["function"]["arguments"]),
        }
        for call in reply.get("tool_calls", ())
    ]
    return {
        "content": blocks,
        "stop_reason": "max_tokens" if reply.get("finish_reason") == "length" else "end_turn",
        "usage": {
            "input_tokens": PROMPT_TOKENS - CACHED_TOKENS,
            "cache_read_input_tokens": CACHED_TOKENS,
            "output_tokens": COMPLETION_TOKENS,
        },
    }
