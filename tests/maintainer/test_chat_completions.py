"""The adapter of endpoints that speak chat completions, over a transport that a test scripts."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from astraflow.contract.errors import InvalidInput
from maintainer.llm.base import Failure, Message, ModelFailed, Request, Said, ToolCall, ToolReply, Usage
from maintainer.llm.chat_completions import ChatCompletions, ChatCompletionsOptions
from maintainer.prompt import SPECS, SYSTEM

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

VALUES = {"model": "mine", "base_url": "http://127.0.0.1:8000/v1/"}
REQUEST = Request(
    system=SYSTEM,
    tools=SPECS,
    messages=(
        Message(role="user", parts=(Said(text="{}"),)),
        Message(role="assistant", parts=(ToolCall(id="t1", name="fleet_report", arguments={"pool": None}),)),
        Message(role="user", parts=(ToolReply(call="t1", content="[]"),)),
    ),
    max_tokens=500,
    timeout_s=20.0,
)


def model(answer: Callable[[httpx2.Request], httpx2.Response], **changes: Any) -> ChatCompletions:
    options = ChatCompletionsOptions.parse(VALUES | changes, where="")
    return ChatCompletions(options, http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(answer)))


def completion(message: dict[str, Any], ending: str | None = "stop") -> httpx2.Response:
    usage = {"prompt_tokens": 400, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 300}}
    choice = {"message": {"role": "assistant", **message}, "finish_reason": ending}
    return httpx2.Response(200, json={"model": "mine-1", "choices": [choice], "usage": usage})


def tool(arguments: str) -> dict[str, Any]:
    return {"content": None, "tool_calls": [{"id": "t2", "function": {"name": "fleet_plan", "arguments": arguments}}]}


async def failure(answer: Callable[[httpx2.Request], httpx2.Response]) -> ModelFailed:
    asked = model(answer)
    with pytest.raises(ModelFailed) as caught:
        await asked.reply(REQUEST)
    await asked.close()
    return caught.value


async def test_a_conversation_is_told_in_the_endpoint_s_words(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[httpx2.Request] = []

    def answer(asked: httpx2.Request) -> httpx2.Response:
        seen.append(asked)
        return completion(tool('{"pool": "p"}'), "tool_calls")

    monkeypatch.setenv("MY_KEY", "secret")
    asked = model(answer, key_variable="MY_KEY")
    reply = await asked.reply(REQUEST)
    await asked.close()
    assert reply.calls == (ToolCall(id="t2", name="fleet_plan", arguments={"pool": "p"}),)
    assert reply.usage == Usage(input=100, output=20, cache_read=300)
    assert asked.usd(reply.usage) == 0.0
    assert str(seen[0].url) == "http://127.0.0.1:8000/v1/chat/completions"
    assert seen[0].headers["authorization"] == "Bearer secret"
    sent = json.loads(seen[0].content)
    assert [message["role"] for message in sent["messages"]] == ["system", "user", "assistant", "tool"]
    assert sent["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"pool": null}'
    assert sent["parallel_tool_calls"] is False
    assert all(one["function"]["strict"] for one in sent["tools"])


async def test_arguments_that_are_no_json_are_told_as_none() -> None:
    for arguments in ('{"pool": ', "[1]", "7"):
        asked = model(lambda _, arguments=arguments: completion(tool(arguments), "tool_calls"))  # type: ignore[misc]  # bound at once
        reply = await asked.reply(REQUEST)
        await asked.close()
        assert reply.calls[0].arguments is None


@pytest.mark.parametrize(
    ("message", "ending", "expected"),
    [
        ({"content": "half a"}, "length", Failure.CUT),
        ({"content": ""}, "content_filter", Failure.REFUSED),
        ({"content": None, "refusal": "I will not"}, "stop", Failure.REFUSED),
        ({"content": "half"}, None, Failure.DROPPED),
    ],
)
async def test_an_answer_that_did_not_come_to_its_end_is_none(
    message: dict[str, Any], ending: str | None, expected: Failure
) -> None:
    problem = await failure(lambda _: completion(message, ending))
    assert (problem.failure, problem.usage) == (expected, Usage(input=100, output=20, cache_read=300))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"choices": []}', b"<html>", b'{"choices": [{"message": null}]}', b"[" * 10000]
)
async def test_garbage_is_no_answer(content: bytes) -> None:
    assert (await failure(lambda _: httpx2.Response(200, content=content))).failure is Failure.GARBAGE


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, Failure.INVALID),
        (401, Failure.AUTH),
        (302, Failure.INVALID),
        (429, Failure.RATE_LIMITED),
        (500, Failure.SERVER),
        (503, Failure.OVERLOADED),
        (529, Failure.OVERLOADED),
    ],
)
async def test_a_status_is_one_failure(status: int, expected: Failure) -> None:
    problem = await failure(lambda _: httpx2.Response(status, headers={"retry-after": "3", "location": "http://x"}))
    assert (problem.failure, problem.retry_after_s) == (expected, 3.0)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (httpx2.ReadTimeout("slow"), Failure.TIMEOUT),
        (httpx2.ConnectError("refused"), Failure.CONNECTION),
        (httpx2.ReadError("gone"), Failure.DROPPED),
        (httpx2.RemoteProtocolError("cut"), Failure.DROPPED),
    ],
)
async def test_silence_is_a_failure(problem: Exception, expected: Failure) -> None:
    def answer(asked: httpx2.Request) -> httpx2.Response:
        raise problem

    assert (await failure(answer)).failure is expected


def test_what_cannot_be_used_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(InvalidInput, match="MY_KEY"):
        model(lambda _: httpx2.Response(200), key_variable="MY_KEY")
    with pytest.raises(InvalidInput, match="base_url"):
        model(lambda _: httpx2.Response(200), base_url="file:///etc/passwd")
