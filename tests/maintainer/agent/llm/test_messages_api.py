"""Messages API adapter, with the real SDK over a scripted transport."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest

from astraflow.contract.errors import InvalidInput
from maintainer.agent.llm.interface import (
    Failure,
    Message,
    ModelFailed,
    OpaqueBlock,
    Reply,
    Request,
    TextPart,
    ToolCall,
    ToolReply,
    Usage,
)
from maintainer.agent.llm.messages_api import MessagesApi, MessagesApiOptions
from maintainer.agent.prompt import SPECS, SYSTEM
from tests.errors import raises_code

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

OPTIONS = MessagesApiOptions.parse(
    {"model": "a-model", "base_url": "http://model.test", "prices": {"input": 4.0, "output": 20.0}}, where=""
)
KEY = "key-that-is-never-shown"
START_USAGE = {
    "input_tokens": 10,
    "output_tokens": 1,
    "cache_read_input_tokens": 300,
    "cache_creation_input_tokens": 40,
}


def request(*messages: Message) -> Request:
    opening = Message(role="user", parts=(TextPart(text="{}"),))
    return Request(system=SYSTEM, tools=SPECS, messages=(opening, *messages), max_tokens=500, timeout_s=20.0)


def events(*blocks: dict[str, Any], stop: str | None = "tool_use", output: int = 25) -> list[dict[str, Any]]:
    """Returns the events of a stream. Blocks: text, or a tool with its JSON in pieces."""
    message = {"id": "m1", "type": "message", "role": "assistant", "model": "a-model-1", "content": []}
    server_events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "stop_reason": None, "usage": START_USAGE}}
    ]
    for index, block in enumerate(blocks):
        begin, deltas = _block(block)
        server_events.append({"type": "content_block_start", "index": index, "content_block": begin})
        server_events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        server_events.append({"type": "content_block_stop", "index": index})
    if stop is not None:
        delta = {"stop_reason": stop, "stop_sequence": None}
        server_events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": output}})
        server_events.append({"type": "message_stop"})
    return server_events


def _block(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if "text" in block:
        return {"type": "text", "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if "thinking" in block:
        return {"type": "thinking", "thinking": "", "signature": ""}, [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": "signed"},
        ]
    begin = {"type": "tool_use", "id": block.get("id", "t1"), "name": block["name"], "input": {}}
    return begin, [{"type": "input_json_delta", "partial_json": piece} for piece in block["json"]]


def encoded(sent: list[dict[str, Any]]) -> bytes:
    return b"".join(f"event: {sent_item['type']}\ndata: {json.dumps(sent_item)}\n\n".encode() for sent_item in sent)


def streamed(sent: list[dict[str, Any]]) -> httpx2.Response:
    return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=encoded(sent))


def model(answer: Callable[[httpx2.Request], httpx2.Response], monkeypatch: pytest.MonkeyPatch) -> MessagesApi:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    return MessagesApi(OPTIONS, http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(answer)))


async def failure(answer: Callable[[httpx2.Request], httpx2.Response], monkeypatch: pytest.MonkeyPatch) -> ModelFailed:
    chat_model = model(answer, monkeypatch)
    with pytest.raises(ModelFailed) as caught:
        await chat_model.reply(request())
    await chat_model.close()
    assert KEY not in str(caught.value)
    return caught.value


async def test_a_turn_with_a_tool_call_is_read_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[httpx2.Request] = []

    def answer(http_request: httpx2.Request) -> httpx2.Response:
        requests.append(http_request)
        call = {"name": "fleet_nodes", "json": ['{"pool": null, ', '"filter": "all", "sort": "age", "limit": 5}']}
        return streamed(events({"thinking": "hm"}, {"text": "I look."}, call))

    chat_model = model(answer, monkeypatch)
    reply = await chat_model.reply(request())
    await chat_model.close()
    assert reply == Reply(
        parts=(
            OpaqueBlock(block={"type": "thinking", "thinking": "hm", "signature": "signed"}),
            TextPart(text="I look."),
            ToolCall(
                id="t1",
                name="fleet_nodes",
                arguments={"pool": None, "filter": "all", "sort": "age", "limit": 5},
            ),
        ),
        usage=Usage(input=10, output=25, cache_read=300, cache_write=40),
        model="a-model-1",
    )
    assert chat_model.usd(reply.usage) == pytest.approx((10 * 4 + 25 * 20 + 300 * 0.4 + 40 * 5) / 1e6)
    sent = json.loads(requests[0].content)
    assert sent["stream"] is True
    assert sent["system"][-1]["cache_control"] == {"type": "ephemeral"}
    assert sent["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert all(tool["strict"] and tool["input_schema"]["additionalProperties"] is False for tool in sent["tools"])
    assert KEY not in requests[0].content.decode()


async def test_earlier_turns_are_sent_back_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[dict[str, Any]] = []

    def answer(http_request: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(http_request.content))
        return streamed(events({"text": "Done."}, stop="end_turn"))

    chat_model = model(answer, monkeypatch)
    turn = Message(
        role="assistant",
        parts=(
            OpaqueBlock(block={"type": "thinking", "thinking": "hm", "signature": "s"}),
            ToolCall(id="t1", name="fleet_report", arguments={"pool": None, "format": "concise"}),
        ),
    )
    replies = Message(role="user", parts=(ToolReply(call="t1", content="{}", is_error=True),))
    reply = await chat_model.reply(request(turn, replies))
    await chat_model.close()
    assert (reply.text, reply.calls) == ("Done.", ())
    assert [block["type"] for block in bodies[0]["messages"][1]["content"]] == ["thinking", "tool_use"]
    last = bodies[0]["messages"][2]["content"][-1]
    assert (last["tool_use_id"], last["is_error"], last["cache_control"]) == ("t1", True, {"type": "ephemeral"})


async def test_parallel_calls_are_read_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [{"id": f"t{n}", "name": "fleet_hold", "json": ["{}"]} for n in range(3)]
    chat_model = model(lambda _: streamed(events(*blocks)), monkeypatch)
    reply = await chat_model.reply(request())
    await chat_model.close()
    assert [call.id for call in reply.calls] == ["t0", "t1", "t2"]


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("max_tokens", Failure.CUT),
        ("model_context_window_exceeded", Failure.CUT),
        ("refusal", Failure.REFUSED),
        ("pause_turn", Failure.GARBAGE),
        ("something_new", Failure.GARBAGE),
        (None, Failure.DROPPED),
    ],
)
async def test_an_incomplete_answer_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, stop: str | None, expected: Failure
) -> None:
    call = {"name": "fleet_apply", "json": ['{"plan_id": "p", "idempotency_key"']}
    problem = await failure(lambda _: streamed(events({"text": "so"}, call, stop=stop)), monkeypatch)
    assert problem.failure is expected
    assert problem.usage is not None
    assert problem.usage.total >= 351


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (400, "invalid_request_error", Failure.INVALID),
        (401, "authentication_error", Failure.AUTH),
        (403, "permission_error", Failure.AUTH),
        (404, "not_found_error", Failure.INVALID),
        (413, "request_too_large", Failure.INVALID),
        (429, "rate_limit_error", Failure.RATE_LIMITED),
        (500, "api_error", Failure.SERVER),
        (503, "api_error", Failure.OVERLOADED),
        (529, "overloaded_error", Failure.OVERLOADED),
    ],
)
async def test_each_status_has_one_failure_and_is_not_retried(
    monkeypatch: pytest.MonkeyPatch, status: int, kind: str, expected: Failure
) -> None:
    tries = []

    def answer(http_request: httpx2.Request) -> httpx2.Response:
        tries.append(http_request)
        error = {"type": "error", "error": {"type": kind, "message": f"no, {KEY}"}}
        return httpx2.Response(status, json=error, headers={"retry-after": "17"})

    problem = await failure(answer, monkeypatch)
    assert (problem.failure, problem.retry_after_s, len(tries)) == (expected, 17.0, 1)


async def test_an_error_inside_a_stream_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    sent = [*events({"text": "I"}, stop=None), error]
    assert (await failure(lambda _: streamed(sent), monkeypatch)).failure is Failure.OVERLOADED


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (httpx2.ReadTimeout("slow"), Failure.TIMEOUT),
        (httpx2.ConnectTimeout("slow"), Failure.TIMEOUT),
        (httpx2.ConnectError("refused"), Failure.CONNECTION),
    ],
)
async def test_a_timeout_is_a_failure(monkeypatch: pytest.MonkeyPatch, problem: Exception, expected: Failure) -> None:
    def answer(http_request: httpx2.Request) -> httpx2.Response:
        raise problem

    assert (await failure(answer, monkeypatch)).failure is expected


class Broken(httpx2.AsyncByteStream):
    """Half of a stream, then a connection error."""

    def __init__(self, sent: bytes, problem: Exception) -> None:
        self.sent = sent
        self.problem = problem

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.sent
        raise self.problem

    async def aclose(self) -> None:
        return None


@pytest.mark.parametrize(
    "problem", [httpx2.ReadError("gone"), httpx2.RemoteProtocolError("cut"), httpx2.ReadTimeout("")]
)
async def test_a_stream_that_breaks_off_is_a_failure(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    call = {"name": "fleet_apply", "json": ['{"plan_id": "p"']}
    half = encoded(events(call, stop=None)[:-1])

    def answer(http_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Broken(half, problem))

    error = await failure(answer, monkeypatch)
    assert error.failure in (Failure.DROPPED, Failure.TIMEOUT, Failure.CONNECTION)
    assert error.usage is not None
    assert error.usage.cache_read == 300


async def test_received_text_is_kept_when_a_turn_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    call = {"name": "fleet_apply", "json": ['{"plan_id": ', '"p"']}
    half = encoded(events({"thinking": "hm"}, {"text": "so "}, call, stop=None)[:-1])

    class Silent(httpx2.AsyncByteStream):
        """Half of a stream, then silence."""

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield half
            await asyncio.Event().wait()

        async def aclose(self) -> None:
            return None

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Silent())

    chat_model, sent = model(answer, monkeypatch), request()
    replying = asyncio.create_task(chat_model.reply(sent))
    for _ in range(1000):
        if sent.partial_reply.text.endswith('"p"'):
            break
        await asyncio.sleep(0.01)
    replying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await replying
    await chat_model.close()
    assert sent.partial_reply.text == 'hmso {"plan_id": "p"'
    assert sent.partial_reply.usage is not None
    assert (sent.partial_reply.usage.input, sent.partial_reply.usage.cache_read) == (START_USAGE["input_tokens"], 300)


@pytest.mark.parametrize(
    "content", [b"", b"<html>", b"data: {]\n\n", b"event: ping\ndata: {}\n\n", b'data: "text"\n\n', b"\xff\xfe"]
)
async def test_an_invalid_answer_is_a_failure(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    def answer(http_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=content)

    assert (await failure(answer, monkeypatch)).failure in (Failure.GARBAGE, Failure.DROPPED, Failure.SERVER)


async def test_invalid_json_arguments_are_a_failure_or_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    call = {"name": "fleet_apply", "json": ['{"plan_id": }}}']}
    assert (await failure(lambda _: streamed(events(call)), monkeypatch)).failure is Failure.GARBAGE


def test_a_missing_key_is_reported_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with raises_code(InvalidInput, "model.key_missing", "ANTHROPIC_API_KEY"):
        MessagesApi(OPTIONS)
