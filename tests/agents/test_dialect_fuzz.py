"""Random requests in every dialect: each is answered, in the dialect's words, and never with a server error."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
import pytest
from anthropic.types import Message
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from astraflow.agents.calls import AgentMessage, FunctionCall, ReplyFinish, Role
from astraflow.agents.dialects.dialect import to_json
from astraflow.agents.proxy.app import ProxyApp
from astraflow.agents.proxy.connections import DISCONNECTED
from astraflow.agents.proxy.sessions import SessionTable
from astraflow.runtime.clock import SystemClock
from tests.agents.strict_models import strictly
from tests.fakes.agent_handlers import ScriptedHandler

FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}, "strict": None}
PARTS = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, {"type": "output_text", "text": "c"}]
SHARED = {"model": "m", "temperature": 1, "top_p": 0.5, "stream": False, "parallel_tool_calls": True}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        **SHARED,
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": PARTS[:1]},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "r",
                "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "x", "content": "t"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "max_tokens": 5,
        "max_completion_tokens": 5,
        "stop": ["x"],
        "n": 1,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    },
    "/v1/responses": {
        **SHARED,
        "instructions": "i",
        "previous_response_id": None,
        "input": [
            {"role": "user", "content": PARTS[1:2]},
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
            {"type": "message", "role": "assistant", "content": PARTS[2:]},
            {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "x", "output": "o"},
        ],
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        "metadata": {"a": "b"},
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 5,
    },
    "/v1/messages": {
        **SHARED,
        "system": PARTS[:1],
        "messages": [
            {"role": "user", "content": "u"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "t", "signature": "s"},
                    *PARTS[:1],
                    {"type": "tool_use", "id": "x", "name": "f", "input": {"a": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": PARTS[:1]}]},
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        "stop_sequences": ["x"],
        "max_tokens": 5,
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
        "thread": None,
    },
    "/inference/v1/generate": {
        "model": "m",
        "token_ids": [1, 2],
        "sampling_params": {"max_tokens": 4, "stop_token_ids": [2], "logprobs": 1, "n": 1, "temperature": 1.0},
        "stream": False,
        "return_token_ids": True,
        "request_id": "r",
        "output_mode": "tokens",
    },
    "/v1/messages/count_tokens": {"model": "m", "messages": [{"role": "user", "content": "u"}], "system": "s"},
    "/v1/responses/input_tokens": {"model": "m", "input": "i"},
}
MODELS: dict[str, Any] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/responses": Response,
    "/v1/messages": Message,
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
words = sorted(
    {"role", "content", "type", "input", "id", "name", "arguments", "n", "stream", "image_url", "audio", "developer"}
    | {"robot", "file", "none", "auto", "required", "any", "tool", "function", "text", "json_object", "assistant"}
)
odd_values: st.SearchStrategy[Any] = json_values | st.sampled_from(words) | st.builds(dict, type=st.sampled_from(words))
replies = st.builds(
    AgentMessage,
    role=st.just(Role.ASSISTANT),
    content=st.text(max_size=8),
    reasoning=st.none() | st.text(max_size=8),
    function_calls=st.lists(
        st.builds(
            FunctionCall,
            id=st.text(max_size=8),
            name=st.text(max_size=8),
            arguments=st.text(max_size=8) | json_values.map(lambda value: to_json(value).decode()),
        ),
        max_size=2,
    ).map(tuple),
)


def nodes(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Returns the paths of all values inside a value."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, child in children for inner in nodes(child, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """Returns the value with one of its inner values changed."""
    if not path:
        return change(value)
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], change)
    return copy


@st.composite
def changed_bodies(draw: st.DrawFn) -> tuple[str, Any]:
    """Draws a path and a valid body of which a few values are replaced, removed, renamed or repeated."""
    path = draw(st.sampled_from(sorted(BODIES)))
    body: Any = {**BODIES[path], "stream": draw(st.booleans())} if draw(st.booleans()) else BODIES[path]
    for _ in range(draw(st.integers(0, 3))):
        where = draw(st.sampled_from(nodes(body)))
        odd = draw(odd_values)
        body = replaced(body, where, partial(changed, draw(st.sampled_from(["replace", "repeat", "type", "cut"])), odd))
    return path, body


def changed(how: str, odd: Any, value: Any) -> Any:
    """Returns a value that is replaced by another, repeated in a list, of another type, or without its first part."""
    match how, value:
        case "repeat", _:
            return [value, value]
        case "type", dict():
            return {**value, "type": odd}
        case "cut", dict():
            return dict(list(value.items())[1:])
        case "cut", list() | str():
            return value[1:]
        case _:
            return odd


async def call(path: str, body: bytes, handler: ScriptedHandler) -> tuple[int, bytes]:
    """Returns status and body of an answer."""
    clock = SystemClock()
    sessions = SessionTable(clock)
    session = sessions.open(handler, is_recorded=True)
    headers = [(b"x-api-key", session.secret.encode())]
    connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    extensions = {DISCONNECTED: {"future": connected}}
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "extensions": extensions}
    sent: list[dict[str, Any]] = []
    is_read = False

    async def receive() -> dict[str, Any]:
        nonlocal is_read
        if is_read:
            await asyncio.Event().wait()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(30):
        await ProxyApp(sessions, clock)(scope, receive, send)
    assert session.failure is None
    assert session.body_bytes == 0
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


def check(path: str, status: int, answer: bytes) -> None:
    """Checks that an answer is a valid one of its dialect."""
    assert status in (200, 400, 404)
    if status == 200 and answer.startswith((b"data: ", b"event: ")):
        assert all(event.startswith(b"data: ") or b"\ndata: " in event for event in answer.strip().split(b"\n\n"))
        return
    value = orjson.loads(answer)
    if status == 200:
        if model := MODELS.get(path):
            strictly(model, value, extra=("reasoning_content",))
        return
    error = value["error"]
    assert isinstance(error["message"], str)
    assert error["type"] in ("invalid_request_error", "not_found_error")


@given(changed_bodies(), replies, st.sampled_from(ReplyFinish))
def test_changed_requests_are_answered_or_refused(
    request: tuple[str, Any], reply: AgentMessage, finish: ReplyFinish
) -> None:
    path, body = request
    handler = ScriptedHandler(lambda _: reply, finish=finish)
    status, answer = asyncio.run(call(path, to_json(body), handler))
    if not body_repeats_odd_values(path, body, reply):
        check(path, status, answer)
    assert status < 500
    assert status == 200 or not (handler.calls or handler.token_calls), "its client does not get the sampled reply"


def body_repeats_odd_values(path: str, body: Any, reply: AgentMessage) -> bool:
    """Whether a valid answer repeats a value that the models of the SDKs do not allow: echoes of the request, and
    arguments that are not an object."""
    if not isinstance(body, dict):
        return False
    if path == "/v1/responses":
        return any(body.get(name) != BODIES[path].get(name) for name in ("text", "tool_choice", "metadata"))
    return any(not call.arguments.startswith("{") for call in reply.function_calls)


@given(st.sampled_from(sorted(BODIES)), st.binary(max_size=64) | json_values.map(to_json))
def test_bodies_that_are_something_else_are_refused(path: str, body: bytes) -> None:
    status, answer = asyncio.run(call(path, body, ScriptedHandler()))
    check(path, status, answer)
    assert status == 400 or path == "/v1/messages/count_tokens"


@pytest.mark.parametrize("path", sorted(BODIES))
@pytest.mark.parametrize("depth", [100, 250, 1000, 100_000])
def test_deeply_nested_bodies_are_answered_or_refused(path: str, depth: int) -> None:
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    for where in nodes(BODIES[path])[1:]:
        body = to_json(replaced(BODIES[path], where, lambda _: "HERE")).replace(b'"HERE"', deep, 1)
        status, answer = asyncio.run(call(path, body, ScriptedHandler()))
        assert status in (200, 400)
        assert answer


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/v1/responses", "metadata", "x"),
        ("/v1/chat/completions", "stream_options", "x"),
        ("/v1/chat/completions", "stream_options", {"include_usage": 1}),
        ("/inference/v1/generate", "stream_options", "x"),
        ("/inference/v1/generate", "stream_options", {"include_usage": 1}),
        ("/inference/v1/generate", "request_id", 1),
        ("/inference/v1/generate", "return_token_ids", "x"),
    ],
)
def test_fields_of_the_answer_are_checked_before_a_reply_is_sampled(path: str, field: str, value: Any) -> None:
    handler = ScriptedHandler()
    for is_streaming in (False, True):
        body = {**BODIES[path], "stream": is_streaming, field: value}
        status, _ = asyncio.run(call(path, to_json(body), handler))
        assert (status, handler.calls, handler.token_calls) == (400, [], [])


@pytest.mark.parametrize("path", sorted(BODIES))
def test_the_unchanged_requests_are_answered(path: str) -> None:
    status, answer = asyncio.run(call(path, to_json(BODIES[path]), ScriptedHandler()))
    assert status == 200
    check(path, status, answer)
