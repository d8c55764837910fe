"""A server for the Chat Completions API: its answers follow from the requests, as those of a model do.

Counterpart of `tests.fakes.messages_api`, with the same behaviours. Endpoints support different fields: the server
refuses unsupported fields with 400. `python -m tests.fakes.chat_completions good` serves one.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from astraflow.runtime.http.server import listening, serving_http, url_of
from maintainer.agent.llm.conversation_view import ConversationView, Step
from maintainer.agent.llm.heuristic_baseline import good
from maintainer.agent.llm.interface import Message, TextPart, ToolCall, ToolReply
from maintainer.agent.llm.scripted import CHARACTERS
from tests.fakes.messages_api import Behaviour

KEY = "sk-not-a-key"
WORDS = frozenset({"model", "messages", "tools", "tool_choice", "parallel_tool_calls", "max_tokens"})
"""Supported request fields, by default."""
NEWER_FIELDS = (WORDS - {"max_tokens", "parallel_tool_calls"}) | {"max_completion_tokens"}
"""Request fields of endpoints that use the newer names."""


class FakeChatCompletions:
    """Server of one endpoint. A test may change `behaviour` while it runs."""

    def __init__(self, words: frozenset[str], *, knows_strict: bool) -> None:
        self.words = words
        self.knows_strict = knows_strict
        self.base_url = ""
        self.behaviour: Behaviour = good
        self.requests: list[dict[str, Any]] = []
        self.refused: list[str] = []
        """Reasons of refused requests."""

    async def completions(self, request: Request) -> Response:
        """Handles `POST /v1/chat/completions`."""
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return JSONResponse({"error": {"message": "invalid key"}}, status_code=401)
        body = await request.json()
        problem = self._problem(body)
        if problem:
            self.refused.append(problem)
            return JSONResponse({"error": {"message": problem, "type": "invalid_request_error"}}, status_code=400)
        self.requests.append(body)
        steps = self.behaviour(ConversationView(tuple(_messages(body))))
        return JSONResponse(_completion(body, steps, number=len(self.requests)))

    def _problem(self, body: Mapping[str, Any]) -> str:
        """Returns the reason why an endpoint would refuse the request; empty when it would not."""
        unknown = sorted(set(body) - self.words)
        if unknown:
            return f"unsupported parameter: {unknown[0]}"
        most = body.get("max_completion_tokens", body.get("max_tokens"))
        if not isinstance(most, int):
            return "max_tokens is required"
        if not self.knows_strict and any("strict" in tool["function"] for tool in body["tools"]):
            return "unsupported parameter: tools.function.strict"
        if body["messages"][0]["role"] != "system":
            return "messages.0: the system text comes first"
        unanswered_calls: set[str] = set()
        for number, message in enumerate(body["messages"]):
            if message["role"] == "tool":
                if message["tool_call_id"] not in unanswered_calls:
                    return f"messages.{number}: answers a call that was not made"
                unanswered_calls.remove(message["tool_call_id"])
            elif unanswered_calls:
                return f"messages.{number}: calls were not answered: {sorted(unanswered_calls)}"
            unanswered_calls |= {call["id"] for call in message.get("tool_calls") or ()}
        return ""


@asynccontextmanager
async def serving_completions(
    words: frozenset[str] = WORDS, *, knows_strict: bool = True
) -> AsyncIterator[FakeChatCompletions]:
    """Serves on a free port until the block ends."""
    api = FakeChatCompletions(words, knows_strict=knows_strict)
    app = Starlette(routes=[Route("/v1/chat/completions", api.completions, methods=["POST"])])
    with listening("127.0.0.1", 0) as listener:
        async with serving_http(app, listener):
            api.base_url = url_of(listener, "127.0.0.1") + "/v1"
            yield api


def _messages(body: Mapping[str, Any]) -> Iterator[Message]:
    """Yields the messages without the system text; the result of a tool is a message of its own."""
    for message in body["messages"][1:]:
        if message["role"] == "tool":
            reply = ToolReply(call=message["tool_call_id"], content=message["content"])
            yield Message(role="user", parts=(reply,))
            continue
        text_parts = (TextPart(text=message["content"]),) if message["content"] else ()
        calls = tuple(_call(call) for call in message.get("tool_calls") or ())
        yield Message(role=message["role"], parts=(*text_parts, *calls))


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call["function"]
    return ToolCall(id=call["id"], name=function["name"], arguments=json.loads(function["arguments"]))


def _completion(body: Mapping[str, Any], steps: list[Step], *, number: int) -> dict[str, Any]:
    calls = [
        {
            "id": f"call_{number}_{index}",
            "type": "function",
            "function": {"name": step.name, "arguments": json.dumps(step.arguments)},
        }
        for index, step in enumerate(steps)
        if isinstance(step, ToolCall)
    ]
    text = "".join(step for step in steps if isinstance(step, str))
    message = {"role": "assistant", "content": text or None} | ({"tool_calls": calls} if calls else {})
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": {
            "prompt_tokens": len(json.dumps(body["messages"])) // 4,
            "completion_tokens": max(1, sum(len(str(step)) for step in steps) // 4),
        },
    }


async def _serve(character: str) -> None:
    async with serving_completions() as api:
        api.behaviour = CHARACTERS[character]
        print(f"{api.base_url} key {KEY}", flush=True)  # noqa: T201 (where, and with what)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1] if len(sys.argv) > 1 else "good"))
