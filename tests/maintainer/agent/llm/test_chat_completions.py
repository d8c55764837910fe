"""Adapter of chat completions endpoints, over a scripted transport and in a maintainer over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from astraflow.contract.errors import InvalidInput
from maintainer.agent.llm.chat_completions import MAX_BYTES, ChatCompletions, ChatCompletionsOptions
from maintainer.agent.llm.conversation_view import ConversationView, Step
from maintainer.agent.llm.interface import (
    MAX_PARTIAL_CHARACTERS,
    Failure,
    Message,
    ModelFailed,
    PartialReply,
    Reply,
    Request,
    TextPart,
    ToolCall,
    ToolReply,
    Usage,
)
from maintainer.agent.prompt import SPECS, SYSTEM
from tests.errors import raises_code
from tests.fakes.chat_completions import KEY, NEWER_FIELDS, WORDS, FakeChatCompletions, serving_completions
from tests.maintainer.agent.test_loop import grown, too_few
from tests.maintainer.parts import Scene, scene

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

VALUES = {"model": "mine", "base_url": "http://127.0.0.1:8000/v1/"}
REQUEST = Request(
    system=SYSTEM,
    tools=SPECS,
    messages=(
        Message(role="user", parts=(TextPart(text="{}"),)),
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
    chat_model = model(answer)
    with pytest.raises(ModelFailed) as caught:
        await chat_model.reply(REQUEST)
    await chat_model.close()
    return caught.value


async def test_a_conversation_is_sent_in_the_endpoints_format(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[httpx2.Request] = []

    def answer(http_request: httpx2.Request) -> httpx2.Response:
        requests.append(http_request)
        return completion(tool('{"pool": "p"}'), "tool_calls")

    monkeypatch.setenv("MY_KEY", "secret")
    chat_model = model(answer, key_variable="MY_KEY")
    reply = await chat_model.reply(REQUEST)
    await chat_model.close()
    assert reply.calls == (ToolCall(id="t2", name="fleet_plan", arguments={"pool": "p"}),)
    assert reply.usage == Usage(input=100, output=20, cache_read=300)
    assert chat_model.usd(reply.usage) == 0.0
    assert str(requests[0].url) == "http://127.0.0.1:8000/v1/chat/completions"
    assert requests[0].headers["authorization"] == "Bearer secret"
    sent = json.loads(requests[0].content)
    assert [message["role"] for message in sent["messages"]] == ["system", "user", "assistant", "tool"]
    assert sent["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"pool": null}'
    assert sent["parallel_tool_calls"] is False
    assert all(tool["function"]["strict"] for tool in sent["tools"])


async def test_invalid_json_arguments_become_none() -> None:
    for arguments in ('{"pool": ', "[1]", "7"):
        chat_model = model(lambda _, arguments=arguments: completion(tool(arguments), "tool_calls"))  # type: ignore[misc]  # binds the loop variable
        reply = await chat_model.reply(REQUEST)
        await chat_model.close()
        assert reply.calls[0].arguments is None


def call(arguments: object, **changes: object) -> dict[str, Any]:
    return {"id": "t2", "function": {"name": "fleet_plan", "arguments": arguments}} | changes


async def replied(message: dict[str, Any], ending: Any = "tool_calls", **fields: Any) -> Reply:
    body = json.loads(completion(message, ending).content) | fields
    chat_model = model(lambda _: httpx2.Response(200, json=body))
    reply = await chat_model.reply(REQUEST)
    await chat_model.close()
    return reply


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"pool": "p"}, {"pool": "p"}),
        ('{"pool": "p"}', {"pool": "p"}),
        ('"{\\"pool\\": \\"p\\"}"', {"pool": "p"}),
        ({}, {}),
        ("", {}),
        (None, {}),
        ([], None),
        ([{"pool": "p"}], None),
        ("null", {}),
        (7, None),
        (False, None),
        ("[1]", None),
        ('{"target": NaN}', None),
        ('{"target": 1e999}', None),
        ("[" * 10000, None),
    ],
)
async def test_arguments_are_text_or_an_object(arguments: object, expected: object) -> None:
    (tool_call,) = (await replied({"content": None, "tool_calls": [call(arguments)]})).calls
    assert (tool_call.name, tool_call.arguments) == ("fleet_plan", expected)


async def test_calls_without_an_id_of_their_own_get_one() -> None:
    calls = [call({"n": 0}), call({"n": 1}), call({"n": 2}, id=""), call({"n": 3}, id=None), call({"n": 4}, id=7)]
    del (without := call({"n": 5}))["id"]
    reply = await replied({"tool_calls": [*calls, without]})
    assert [tool_call.arguments for tool_call in reply.calls] == [{"n": number} for number in range(6)]
    ids = [tool_call.id for tool_call in reply.calls]
    assert (ids[0], ids[4]) == ("t2", "7")
    assert len({*ids, ""}) == 7
    assert ids[5] != (await replied({"tool_calls": [without]})).calls[0].id, "nor one of another turn"


async def test_a_call_in_the_older_form_is_read() -> None:
    reply = await replied({"content": "", "function_call": {"name": "fleet_plan", "arguments": "{}"}}, "function_call")
    assert [(tool_call.name, tool_call.arguments) for tool_call in reply.calls] == [("fleet_plan", {})]
    flat = await replied({"tool_calls": [{"id": "t3", "name": "fleet_plan", "arguments": {"pool": "p"}}]})
    assert flat.calls == (ToolCall(id="t3", name="fleet_plan", arguments={"pool": "p"}),)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "One"}, {"type": "text", "text": " more."}], "One more."),
        (["One", {"type": "reasoning", "text": "hm"}, {"type": "output_text", "text": " more."}], "One more."),
        ({"type": "text", "text": "One more."}, "One more."),
        ([], ""),
        ([{"type": "text", "text": None}, None, 7], ""),
        (None, ""),
        ("", ""),
    ],
)
async def test_content_is_text_or_a_list_of_parts(content: object, text: str) -> None:
    assert (await replied({"content": content}, "stop")).text == text


@pytest.mark.parametrize("ending", ["stop", "STOP", "eos", "end_turn", "tool_calls", "function_call", {"type": "stop"}])
async def test_every_name_of_a_complete_end_is_accepted(ending: object) -> None:
    assert (await replied({"content": "done"}, ending)).text == "done"


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": "400", "completion_tokens": "20"}, Usage(input=400, output=20)),
        ({"prompt_tokens": 400.0, "completion_tokens": None}, Usage(input=400)),
        (
            {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": "9"}},
            Usage(output=1, cache_read=5),
        ),
    ],
)
async def test_counts_may_be_text(usage: dict[str, Any], expected: Usage) -> None:
    assert (await replied({"content": "done"}, "stop", usage=usage)).usage == expected


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 0}])
async def test_tokens_that_the_server_does_not_count_are_estimated(usage: object) -> None:
    reply = await replied({"content": "done"}, "stop", usage=usage)
    assert reply.usage.input > len(SYSTEM) // 4
    assert reply.usage.output > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"usage": {"prompt_tokens": "many"}},
        {"usage": {"prompt_tokens": -1}},
        {"usage": {"prompt_tokens": "1e999"}},
        {"usage": [1]},
        {"usage": {"prompt_tokens": [1]}},
    ],
)
async def test_invalid_counts_are_an_invalid_answer(fields: dict[str, Any]) -> None:
    with pytest.raises(ModelFailed) as caught:
        await replied({"content": "done"}, "stop", **fields)
    assert caught.value.failure is Failure.GARBAGE


@pytest.mark.parametrize(
    "calls", [{"id": "t"}, "fleet_plan", [7], [{"id": "t"}], [call({}, function={"name": ""})], [{"function": "x"}]]
)
async def test_invalid_calls_are_an_invalid_answer(calls: object) -> None:
    with pytest.raises(ModelFailed) as caught:
        await replied({"content": "done", "tool_calls": calls})
    assert caught.value.failure is Failure.GARBAGE


@pytest.mark.parametrize(
    ("message", "ending", "expected"),
    [
        ({"content": "half a"}, "max_tokens", Failure.CUT),
        ({"content": "half a"}, "MAX_TOKENS", Failure.CUT),
        ({"content": "half a"}, {"type": "length", "length": 5}, Failure.CUT),
        ({"content": "half a"}, "abort", Failure.DROPPED),
        ({"content": "half a"}, "", Failure.DROPPED),
        ({"content": ""}, "SAFETY", Failure.REFUSED),
        ({"content": None, "refusal": [{"text": "no"}]}, "stop", Failure.REFUSED),
        ({"content": None, "refusal": {"reason": "no"}}, "stop", Failure.REFUSED),
        ({"content": [{"type": "refusal", "refusal": "no"}]}, "stop", Failure.REFUSED),
        ({"content": "half a"}, "length", Failure.CUT),
        ({"content": ""}, "content_filter", Failure.REFUSED),
        ({"content": None, "refusal": "I will not"}, "stop", Failure.REFUSED),
        ({"content": "half"}, None, Failure.DROPPED),
    ],
)
async def test_an_incomplete_answer_is_a_failure(
    message: dict[str, Any], ending: str | None, expected: Failure
) -> None:
    problem = await failure(lambda _: completion(message, ending))
    assert (problem.failure, problem.usage) == (expected, Usage(input=100, output=20, cache_read=300))


@pytest.mark.parametrize(
    ("answer", "partial_text"),
    [
        (
            lambda: completion({"content": "half a"} | {"tool_calls": tool('{"po')["tool_calls"]}, "length"),
            'half a{"po',
        ),
        (lambda: completion({"content": None, "refusal": "I will not"}), "I will not"),
        (lambda: httpx2.Response(200, content="<html>\u00e9t\u00e9".encode()), "<html>\u00e9t\u00e9"),
        (lambda: httpx2.Response(200, content=b'{"choices": []}' + b"x" * 2 * MAX_PARTIAL_CHARACTERS), None),
        (lambda: httpx2.Response(503, content=b"come back later"), ""),
    ],
)
async def test_the_partial_text_of_a_failed_answer_is_kept(
    answer: Callable[[], httpx2.Response], partial_text: str | None
) -> None:
    sent, chat_model = replace(REQUEST, partial_reply=PartialReply()), model(lambda _: answer())
    with pytest.raises(ModelFailed):
        await chat_model.reply(sent)
    await chat_model.close()
    assert sent.partial_reply.text == (
        partial_text
        if partial_text is not None
        else ('{"choices": []}' + "x" * MAX_PARTIAL_CHARACTERS)[:MAX_PARTIAL_CHARACTERS]
    )


@pytest.mark.parametrize("ending", ["breaks off", "is cut"])
async def test_received_text_is_kept_when_an_answer_breaks_off_or_is_cancelled(ending: str) -> None:
    half = completion({"content": "so far"}).content[:60]

    class Half(httpx2.AsyncByteStream):
        """First bytes of an answer."""

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield half
            if ending == "breaks off":
                raise httpx2.ReadError("gone")
            await asyncio.Event().wait()

        async def aclose(self) -> None:
            return None

    sent, chat_model = (
        replace(REQUEST, partial_reply=PartialReply()),
        model(lambda _: httpx2.Response(200, stream=Half())),
    )
    replying = asyncio.create_task(chat_model.reply(sent))
    for _ in range(1000):
        if sent.partial_reply.text:
            break
        await asyncio.sleep(0.01)
    if ending == "is cut":
        replying.cancel()
    with pytest.raises((ModelFailed, asyncio.CancelledError)) as caught:
        await replying
    await chat_model.close()
    assert isinstance(caught.value, asyncio.CancelledError) == (ending == "is cut")
    assert sent.partial_reply.text == half.decode()
    assert sent.partial_reply.usage is None


async def test_an_endless_answer_is_cut_off() -> None:
    problem = await failure(lambda _: httpx2.Response(200, content=b"x" * (MAX_BYTES + 1)))
    assert (problem.failure, "more than" in str(problem)) == (Failure.GARBAGE, True)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"choices": []}', b"<html>", b'{"choices": [{"message": null}]}', b"[" * 10000]
)
async def test_an_invalid_answer_is_a_failure(content: bytes) -> None:
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
async def test_each_status_has_one_failure(status: int, expected: Failure) -> None:
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
async def test_a_timeout_is_a_failure(problem: Exception, expected: Failure) -> None:
    def answer(http_request: httpx2.Request) -> httpx2.Response:
        raise problem

    assert (await failure(answer)).failure is expected


def test_invalid_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    with raises_code(InvalidInput, "model.key_missing", "MY_KEY"):
        model(lambda _: httpx2.Response(200), key_variable="MY_KEY")
    with raises_code(InvalidInput, "model.invalid_base_url"):
        model(lambda _: httpx2.Response(200), base_url="file:///etc/passwd")


async def test_requests_use_the_configured_fields() -> None:
    for changes, known in (
        ({}, {"max_tokens": 500, "parallel_tool_calls": False}),
        ({"max_tokens_field": "max_completion_tokens", "single_calls": False}, {"max_completion_tokens": 500}),
    ):
        bodies: list[dict[str, Any]] = []

        def answer(http_request: httpx2.Request, bodies: list[dict[str, Any]] = bodies) -> httpx2.Response:
            bodies.append(json.loads(http_request.content))
            return completion({"content": "done"})

        chat_model = model(answer, **changes)
        await chat_model.reply(REQUEST)
        await chat_model.close()
        words = ("max_tokens", "max_completion_tokens", "parallel_tool_calls")
        assert {word: bodies[0][word] for word in words if word in bodies[0]} == known
    with raises_code(InvalidInput, "config.invalid", "max_tokens_field"):
        ChatCompletionsOptions.parse(VALUES | {"max_tokens_field": "n_predict"}, where="")


@asynccontextmanager
async def beside(api: FakeChatCompletions, tmp_path: Path, **changes: Any) -> AsyncIterator[Scene]:
    """Yields a maintainer with guard, ledger and cloud, whose model is the fake server."""
    values = {"model": "simulated", "base_url": api.base_url, "key_variable": "CHAT_KEY", **changes}
    llm = ChatCompletions(ChatCompletionsOptions.parse(values, where=""))
    try:
        async with scene(tmp_path, llm=llm) as here:
            await grown(here)
            here.dataflow.recommendations = (too_few(4),)
            await here.pass_time(110.0)
            yield here
    finally:
        await llm.close()


PICKY: dict[str, Any] = {"max_tokens_field": "max_completion_tokens", "single_calls": False, "strict": False}


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "knows_strict", "changes"), [(WORDS, True, {}), (NEWER_FIELDS, False, PICKY)], ids=["usual", "picky"]
)
async def test_a_whole_wake_goes_over_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: frozenset[str], knows_strict: bool, changes: dict[str, Any]
) -> None:
    monkeypatch.setenv("CHAT_KEY", KEY)
    async with serving_completions(words, knows_strict=knows_strict) as api:
        api.behaviour = growing
        async with beside(api, tmp_path, **changes) as here:
            assert api.refused == []
            assert [entry.body["outcome"] for entry in here.entries("sleep")] == ["done"]
            assert [entry.body["outcome"] for entry in here.entries("action")] == ["applied"]
            assert [entry.body["name"] for entry in here.entries("tool")] == ["fleet_plan", "fleet_apply"]
            assert here.entries("sleep")[0].body["tokens"] not in (0, None)
            assert here.entries("note")[0].body["words"] == "One more."
            assert len(api.requests) == 3


@pytest.mark.long
async def test_an_endpoint_that_refuses_a_field_leads_to_no_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAT_KEY", KEY)
    async with serving_completions(NEWER_FIELDS) as api, beside(api, tmp_path) as here:
        assert api.refused[0].endswith(": max_tokens")
        failures = here.entries("failure")
        assert {entry.body["failure"] for entry in failures} == {Failure.INVALID.value}
        assert not here.entries("action")


def growing(talk: ConversationView) -> list[Step]:
    """Plans and applies one more node in the first reported pool, then ends with a note."""
    plans, applied = talk.answered_calls("fleet_plan"), talk.answered_calls("fleet_apply")
    if not plans:
        pool = talk.report["pools"][0]
        return [talk.call("fleet_plan", pool=pool["pool"], target=pool["target"] + 1, retire=None, reason="one more")]
    if not applied:
        return [talk.call("fleet_apply", plan_id=plans[0][1]["plan_id"], idempotency_key="apply")]
    return ["One more."]
