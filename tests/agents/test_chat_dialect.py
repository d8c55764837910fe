"""The official OpenAI SDK with chat completions, against the proxy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import orjson
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from astraflow.agents.calls import AgentMessage, CallRefused, FunctionCall, Refusal, ReplyFinish, Role
from astraflow.agents.dialects.chat import ChatDialect
from astraflow.agents.dialects.dialect import CallContext, ParsedMessages
from astraflow.contract.rollouts.agent_calls import CallOutcome
from tests.agents.strict_models import strictly
from tests.fakes.agent_handlers import ScriptedHandler, calls_reply, eventually, serving, text_reply

pytestmark = pytest.mark.anyio

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
HELLO: Any = [{"role": "user", "content": "Hello"}]


@asynccontextmanager
async def client(handler: ScriptedHandler, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with serving(handler) as access:
        environment = access.environment
        async with openai.AsyncOpenAI(
            base_url=environment["OPENAI_BASE_URL"], api_key=environment["OPENAI_API_KEY"], **options
        ) as sdk:
            yield sdk


async def test_a_plain_call_reaches_the_handler_with_all_its_options() -> None:
    handler = ScriptedHandler(lambda _: text_reply("Hi", reasoning="They greet."))
    async with client(handler) as sdk:
        completion = await sdk.chat.completions.create(
            model="policy",
            messages=[
                {"role": "system", "content": "Be kind."},
                {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                *HELLO,
            ],
            temperature=0.5,
            top_p=0.9,
            max_completion_tokens=16,
            stop=["\n\n"],
            seed=3,
            extra_body={"unknown_field": {"deep": [1]}},
        )
    assert completion.choices[0].message.content == "Hi"
    assert completion.choices[0].message.model_extra == {"reasoning_content": "They greet."}
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + 2
    (call,) = handler.calls
    assert [(message.role, message.content) for message in call.messages] == [
        (Role.SYSTEM, "Be kind."),
        (Role.SYSTEM, "a\nb"),
        (Role.USER, "Hello"),
    ]
    options = call.options
    assert (options.model, options.max_tokens, options.temperature, options.top_p) == ("policy", 16, 0.5, 0.9)
    assert options.stop == ("\n\n",)
    assert (call.tool_choice, call.allows_parallel_calls, options.is_retry) == ("auto", True, False)


async def test_parallel_tool_calls_and_their_results_make_a_conversation() -> None:
    def answer(call: Any) -> Any:
        if call.messages[-1].role is Role.TOOL:
            return text_reply(" and ".join(message.content for message in call.messages[-2:]))
        return calls_reply(
            ("call_a", "weather", '{"city": "Oslo"}'), ("call_b", "weather", '{"city":"Rome"}'), reasoning="Two."
        )

    handler = ScriptedHandler(answer)
    async with client(handler) as sdk:
        messages = list(HELLO)
        first = await sdk.chat.completions.create(model="m", messages=messages, tools=[WEATHER])
        message = first.choices[0].message
        assert first.choices[0].finish_reason == "tool_calls"
        assert [call.id for call in message.tool_calls or []] == ["call_a", "call_b"]
        messages.append(message.model_dump(exclude_none=True))
        for call, result in zip(message.tool_calls or [], ("rain", "sun"), strict=True):
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        second = await sdk.chat.completions.create(
            model="m", messages=messages, tools=[WEATHER], tool_choice="none", parallel_tool_calls=False
        )
    assert second.choices[0].message.content == "rain and sun"
    sent = handler.calls[1]
    assert sent.messages[1].reasoning == "Two."
    assert sent.messages[1].function_calls == (
        FunctionCall(id="call_a", name="weather", arguments='{"city": "Oslo"}'),
        FunctionCall(id="call_b", name="weather", arguments='{"city":"Rome"}'),
    )
    assert [message.call_id for message in sent.messages[2:]] == ["call_a", "call_b"]
    assert sent.tools == (WEATHER,)
    assert (sent.tool_choice, sent.allows_parallel_calls) == ("none", False)


@pytest.mark.parametrize("choice", ["required", "weather"])
async def test_a_tool_can_be_required(choice: str) -> None:
    handler = ScriptedHandler(lambda _: calls_reply(("c", "weather", "{}")))
    wanted: Any = choice if choice == "required" else {"type": "function", "function": {"name": "weather"}}
    async with client(handler) as sdk:
        await sdk.chat.completions.create(model="m", messages=HELLO, tools=[WEATHER], tool_choice=wanted)
    assert handler.calls[0].tool_choice == choice


async def test_streams_give_the_same_completion_as_plain_calls() -> None:
    reply = calls_reply(("call_a", "weather", '{"city":"Oslo"}'), ("call_b", "f", "{}"), text="Look:", reasoning="Hm.")
    async with client(ScriptedHandler(lambda _: reply)) as sdk:
        plain = await sdk.chat.completions.create(model="m", messages=HELLO)
        async with sdk.chat.completions.stream(
            model="m", messages=HELLO, tools=[WEATHER], stream_options={"include_usage": True}
        ) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_completion()
    message = streamed.choices[0].message
    assert message.content == plain.choices[0].message.content == "Look:"
    assert [(call.id, call.function.arguments) for call in message.tool_calls or []] == [
        ("call_a", '{"city":"Oslo"}'),
        ("call_b", "{}"),
    ]
    assert streamed.choices[0].finish_reason == "tool_calls"
    assert streamed.usage == plain.usage
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert "content.done" in kinds


async def test_structured_outputs_carry_their_schema() -> None:
    class Answer(BaseModel):
        value: int

    handler = ScriptedHandler(lambda _: text_reply('{"value": 3}'))
    async with client(handler) as sdk:
        completion = await sdk.chat.completions.parse(model="m", messages=HELLO, response_format=Answer)
        await sdk.chat.completions.create(model="m", messages=HELLO, response_format={"type": "json_object"})
    assert completion.choices[0].message.parsed == Answer(value=3)
    schema = orjson.loads(handler.calls[0].options.json_schema)
    assert schema["properties"]["value"]["type"] == "integer"
    assert orjson.loads(handler.calls[1].options.json_schema) == {"type": "object"}


@pytest.mark.parametrize("finish", list(ReplyFinish))
async def test_bodies_and_chunks_are_valid_in_strict_mode(finish: ReplyFinish) -> None:
    handler = ScriptedHandler(
        lambda _: calls_reply(("a", "f", "{}"), ("b", "g", "{}"), text="x", reasoning="y"), finish=finish
    )
    async with serving(handler) as access, httpx.AsyncClient(base_url=access.url) as raw:
        body = {"model": "m", "messages": HELLO}
        plain = await raw.post("/v1/chat/completions", json=body)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        streamed = await raw.post("/v1/chat/completions", json={**body, **options})
    strictly(ChatCompletion, plain.json(), extra=("reasoning_content",))
    lines = [line.removeprefix("data: ") for line in streamed.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    chunks = [strictly(ChatCompletionChunk, orjson.loads(line), extra=("reasoning_content",)) for line in lines]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == {
        ReplyFinish.STOP: "stop",
        ReplyFinish.LENGTH: "length",
        ReplyFinish.FUNCTION_CALLS: "tool_calls",
    }[finish]
    assert chunks[-1].usage is not None


@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (Refusal.INVALID, openai.BadRequestError),
        (Refusal.LIMIT, openai.BadRequestError),
        (Refusal.UNAUTHENTICATED, openai.AuthenticationError),
        (Refusal.NOT_FOUND, openai.NotFoundError),
        (Refusal.ENDED, openai.ConflictError),
        (Refusal.BUSY, openai.RateLimitError),
    ],
)
async def test_refusals_raise_the_exception_of_the_sdk(
    refusal: Refusal, kind: type[openai.APIStatusError], is_streaming: bool
) -> None:
    def refuse(_: Any) -> Any:
        raise CallRefused("cannot do it: x; y", refusal=refusal, code="test.refused", retry_after_s=7)

    async with client(ScriptedHandler(refuse), max_retries=0) as sdk:
        with pytest.raises(kind) as raised:
            await sdk.chat.completions.create(model="m", messages=HELLO, stream=is_streaming)
    assert raised.value.code == "test.refused"
    assert raised.value.response.headers.get("retry-after") == ("7" if refusal is Refusal.BUSY else None)


@pytest.mark.parametrize("refusal", [Refusal.LIMIT, Refusal.ENDED])
async def test_the_sdk_does_not_retry_what_is_final(refusal: Refusal) -> None:
    def refuse(_: Any) -> Any:
        raise CallRefused("x", refusal=refusal, code="test.refused")

    handler = ScriptedHandler(refuse)
    async with client(handler, max_retries=3) as sdk:
        with pytest.raises(openai.APIStatusError):
            await sdk.chat.completions.create(model="m", messages=HELLO)
    assert len(handler.calls) == 1


async def test_the_sdk_retries_when_weights_are_not_there_yet() -> None:
    def answer(call: Any) -> Any:
        if len(handler.calls) == 1:
            raise CallRefused("x", refusal=Refusal.BUSY, code="test.busy")
        return text_reply("late")

    handler = ScriptedHandler(answer)
    async with client(handler, max_retries=1) as sdk:
        completion = await sdk.chat.completions.create(model="m", messages=HELLO)
    assert completion.choices[0].message.content == "late"
    first, second = handler.calls
    assert first.options.retry_key == second.options.retry_key
    assert (first.options.is_retry, second.options.is_retry) == (False, True)


async def test_a_retry_gets_the_stored_reply_and_is_recorded_as_such() -> None:
    handler = ScriptedHandler()
    async with serving(handler) as access, httpx.AsyncClient(base_url=access.url) as raw:
        body = {"model": "m", "messages": HELLO}
        for headers in ({}, {"x-stainless-retry-count": "1"}, {}, {"idempotency-key": "k"}, {"idempotency-key": "k"}):
            assert (await raw.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
        outcomes = [call.outcome for call, _ in access.record]
    new, again = CallOutcome.ANSWERED, CallOutcome.REPLAYED
    assert outcomes == [new, again, new, new, again]
    assert len({reply_id for _, reply_id in access.record}) == len(handler.calls) == 3


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_a_client_that_leaves_cancels_the_call(is_streaming: bool) -> None:
    async def wait(_: Any) -> Any:
        await asyncio.Event().wait()

    handler = ScriptedHandler(wait)
    async with serving(handler) as access, openai.AsyncOpenAI(base_url=f"{access.url}/v1", api_key="any") as sdk:
        call: Any = sdk.chat.completions.create(model="m", messages=HELLO, stream=is_streaming)
        task = asyncio.create_task(call)
        await eventually(lambda: handler.waiting == 1)
        task.cancel()
        await eventually(lambda: bool(access.record))
        assert handler.cancelled == 1
        assert [(call.outcome, reply_id) for call, reply_id in access.record] == [(CallOutcome.ABORTED, "")]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"n": 2}, "agent.several_replies"),
        ({"messages": []}, "agent.no_messages"),
        ({"messages": None}, "agent.no_messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "agent.unsupported_role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "agent.unsupported_content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "agent.unsupported_content"),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "agent.unsupported_content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "agent.invalid_field"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "agent.unsupported_field"),
        ({"logprobs": True}, "agent.unsupported_field"),
        ({"functions": [{"name": "f"}]}, "agent.unsupported_field"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "agent.unsupported_tool"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "agent.unknown_tool"),
        ({"tool_choice": {"type": "allowed_tools"}}, "agent.unsupported_tool_choice"),
        ({"response_format": {"type": "xml"}}, "agent.unsupported_format"),
        ({"temperature": -1}, "agent.invalid_field"),
        ({"temperature": "hot"}, "agent.invalid_field"),
        ({"max_tokens": 0}, "agent.invalid_field"),
        ({"max_tokens": 2.5}, "agent.invalid_field"),
        ({"stop": [""]}, "agent.invalid_field"),
        ({"stream": "yes"}, "agent.invalid_field"),
    ],
)
async def test_a_request_without_an_answer_is_refused_with_a_code(change: dict[str, Any], code: str) -> None:
    handler = ScriptedHandler()
    async with client(handler) as sdk:
        with pytest.raises(openai.BadRequestError) as raised:
            await sdk.post("/chat/completions", body={"model": "m", "messages": HELLO, **change}, cast_to=object)
    assert raised.value.code == code
    assert not handler.calls


def test_messages_that_an_answered_request_began_with_are_not_parsed_again() -> None:
    def parsed(sent: list[Any], known: ParsedMessages) -> tuple[AgentMessage, ...]:
        context = CallContext(retry_key="", is_retry=False, created_s=0, conversation=lambda _: (), known=known)
        return ChatDialect().parse({"model": "m", "messages": sent}, context).call.messages

    question: dict[str, Any] = {"role": "user", "content": "a"}
    reply: dict[str, Any] = {"role": "assistant", "content": "b"}
    first = parsed([question, reply], ParsedMessages())
    known = ParsedMessages(sent=[question, reply], messages=first)

    longer = parsed([dict(question), dict(reply), dict(question)], known)
    assert [message is before for message, before in zip(longer, first, strict=False)] == [True, True]
    assert longer == parsed([question, reply, question], ParsedMessages())
    edited = [question, {"role": "assistant", "content": "c"}, question]
    assert parsed(edited, known) == parsed(edited, ParsedMessages())
    assert parsed([question], known) == first[:1]
