"""The official Anthropic SDK with messages, against the proxy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import orjson
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent

from astraflow.agents.calls import AgentMessage, CallRefused, FunctionCall, Refusal, ReplyFinish, Role
from astraflow.agents.proxy.server import ProxyOptions
from tests.agents.strict_models import strictly
from tests.fakes.agent_handlers import ScriptedHandler, calls_reply, eventually, serving, text_reply

pytestmark = pytest.mark.anyio

WAITING = ProxyOptions(first_byte_s=0.0, keep_alive_s=0.01)
HELLO: Any = [{"role": "user", "content": "Hello"}]
WEATHER: Any = {
    "name": "weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@asynccontextmanager
async def client(
    handler: ScriptedHandler, proxy: ProxyOptions | None = None, **options: Any
) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with serving(handler, proxy) as access:
        environment = access.environment
        async with anthropic.AsyncAnthropic(
            base_url=environment["ANTHROPIC_BASE_URL"], api_key=environment["ANTHROPIC_API_KEY"], **options
        ) as sdk:
            yield sdk


async def test_a_plain_call_reaches_the_handler_with_all_its_options() -> None:
    handler = ScriptedHandler(lambda _: text_reply("Hi", reasoning="They greet."))
    async with client(handler) as sdk:
        message = await sdk.messages.create(
            model="policy",
            max_tokens=64,
            system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
            messages=HELLO,
            extra_body={"temperature": 0.5, "top_p": 0.9},
            stop_sequences=["END"],
            thinking={"type": "enabled", "budget_tokens": 1024},
            output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
        )
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert (message.stop_reason, message.model) == ("end_turn", "policy")
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == len("Be kind.Hello")
    (call,) = handler.calls
    assert call.messages == (
        AgentMessage(role=Role.SYSTEM, content="Be kind."),
        AgentMessage(role=Role.USER, content="Hello"),
    )
    options = call.options
    assert (options.max_tokens, options.temperature, options.top_p, options.stop) == (64, 0.5, 0.9, ("END",))
    assert orjson.loads(options.json_schema) == {"type": "object"}


async def test_parallel_tool_calls_and_their_results_make_a_conversation() -> None:
    first_reply = calls_reply(
        ("toolu_a", "weather", '{"city":"Oslo"}'),
        ("toolu_b", "weather", '{"city": "Rome"}'),
        text="Both:",
        reasoning="Two.",
    )
    handler = ScriptedHandler(lambda call: text_reply("Done") if len(call.messages) > 1 else first_reply)
    async with client(handler) as sdk:
        first = await sdk.messages.create(model="m", max_tokens=9, messages=HELLO, tools=[WEATHER])
        assert first.stop_reason == "tool_use"
        results: Any = [
            {"type": "tool_result", "tool_use_id": "toolu_a", "content": "rain"},
            {"type": "tool_result", "tool_use_id": "toolu_b", "content": [{"type": "text", "text": "sun"}]},
            {"type": "text", "text": "Well?"},
        ]
        await sdk.messages.create(
            model="m",
            max_tokens=9,
            messages=[*HELLO, first.to_param(), {"role": "user", "content": results}],
            tools=[WEATHER],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
        )
    sent = handler.calls[1]
    assert sent.messages[1] == AgentMessage(
        role=Role.ASSISTANT,
        content="Both:",
        reasoning="Two.",
        function_calls=(
            FunctionCall(id="toolu_a", name="weather", arguments='{"city":"Oslo"}'),
            FunctionCall(id="toolu_b", name="weather", arguments='{"city":"Rome"}'),
        ),
    )
    assert [(message.role, message.content, message.call_id) for message in sent.messages[2:]] == [
        (Role.TOOL, "rain", "toolu_a"),
        (Role.TOOL, "sun", "toolu_b"),
        (Role.USER, "Well?", ""),
    ]
    assert (sent.tool_choice, sent.allows_parallel_calls) == ("required", False)
    assert sent.tools[0]["function"]["parameters"] == WEATHER["input_schema"]


async def test_streams_give_the_same_message_as_plain_calls() -> None:
    reply = calls_reply(
        ("toolu_a", "weather", '{"city":"Oslo"}'), ("toolu_b", "f", "{}"), text="Look:", reasoning="Hm."
    )
    async with client(ScriptedHandler(lambda _: reply)) as sdk:
        plain = await sdk.messages.create(model="m", max_tokens=9, messages=HELLO)
        async with sdk.messages.stream(model="m", max_tokens=9, messages=HELLO) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_message()
    without_id = {"exclude": {"id"}, "exclude_none": True}
    dumped = streamed.model_dump(**without_id)  # type: ignore[arg-type]
    for block in dumped["content"]:
        block.pop("parsed_output", None)
    assert dumped == plain.model_dump(**without_id)  # type: ignore[arg-type]
    assert kinds.count("content_block_stop") == 4


@pytest.mark.long
async def test_the_tool_runner_of_the_sdk_continues_without_a_thread() -> None:
    cities: list[str] = []

    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """Weather of a city."""
        cities.append(city)
        return "rain"

    def answer(call: Any) -> Any:
        if call.messages[-1].role is Role.TOOL:
            return text_reply(f"It is {call.messages[-1].content}.")
        return calls_reply(("toolu_a", "weather", '{"city":"Oslo"}'))

    async with client(ScriptedHandler(answer)) as sdk:
        runner = sdk.beta.messages.tool_runner(model="m", max_tokens=9, messages=HELLO, tools=[weather])
        message = await runner.until_done()
    assert cities == ["Oslo"]
    assert message.content[0].type == "text"
    assert message.content[0].text == "It is rain."


async def test_tokens_are_counted() -> None:
    async with client(ScriptedHandler()) as sdk:
        counted = await sdk.messages.count_tokens(model="m", messages=HELLO, system="ab")
    assert counted.input_tokens == len("abHello")
    strictly(MessageTokensCount, {"input_tokens": counted.input_tokens})


@pytest.mark.parametrize("finish", list(ReplyFinish))
async def test_bodies_and_events_are_valid_in_strict_mode(finish: ReplyFinish) -> None:
    reply = calls_reply(("a", "f", "{}"), ("b", "g", '{"x":[1]}'), text="x", reasoning="y")
    handler = ScriptedHandler(lambda _: reply, finish=finish)
    async with serving(handler) as access, httpx.AsyncClient(base_url=access.url) as raw:
        body = {"model": "m", "max_tokens": 9, "messages": HELLO}
        plain = await raw.post("/v1/messages", json=body)
        streamed = await raw.post("/v1/messages", json={**body, "stream": True})
    message = strictly(Message, plain.json())
    assert plain.json()["content"][1] == {"type": "text", "text": "x"}  # clients refuse `citations` that are null
    assert (
        message.stop_reason
        == {
            ReplyFinish.STOP: "end_turn",
            ReplyFinish.LENGTH: "max_tokens",
            ReplyFinish.FUNCTION_CALLS: "tool_use",
        }[finish]
    )
    for event in streamed.text.strip().split("\n\n"):
        name, data = event.split("\n")
        parsed: Any = strictly(RawMessageStreamEvent, orjson.loads(data.removeprefix("data: ")))  # type: ignore[arg-type]
        assert name == f"event: {parsed.type}"


async def test_neighbours_of_one_role_are_one_message_as_in_the_api() -> None:
    apart: Any = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "I look."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "1"}]},
        {"role": "user", "content": "c"},
    ]
    handler = ScriptedHandler()
    async with client(handler) as sdk:
        await sdk.messages.create(model="m", max_tokens=9, messages=apart)
    assert handler.calls[0].messages == (
        AgentMessage(role=Role.USER, content="a\nb"),
        AgentMessage(
            role=Role.ASSISTANT,
            content="I look.",
            function_calls=(FunctionCall(id="x", name="f", arguments="{}"),),
        ),
        AgentMessage(role=Role.TOOL, content="1", call_id="x"),
        AgentMessage(role=Role.USER, content="c"),
    )


async def test_numbers_of_a_call_stay_exact_and_those_that_are_too_large_become_the_largest() -> None:
    handler = ScriptedHandler(lambda _: calls_reply(("x", "f", '{"n": 123456789012345678901234567890, "x": 1e999}')))
    sent = b'{"n":123456789012345678901234567890,"x":-1e999,"y":0.5}'
    called = b'{"role":"assistant","content":[{"type":"tool_use","id":"x","name":"f","input":' + sent + b"}]}"
    messages = b'[{"role":"user","content":"u"},' + called + b',{"role":"user","content":"v"}]'
    tool = b'{"name":"f","input_schema":{"type":"integer","maximum":18446744073709551616}}'
    async with serving(handler) as access, httpx.AsyncClient(base_url=access.url) as raw:
        head = b'{"model":"m","max_tokens":9,"messages":' + messages
        answer = await raw.post("/v1/messages", content=head + b',"tools":[' + tool + b"]}")
        refused = await raw.post("/v1/messages", content=head + b',"temperature":1e999}')
        constant = await raw.post("/v1/messages", content=head + b',"temperature":NaN}')
    assert b'"input":{"n":123456789012345678901234567890,"x":1.7976931348623157e+308}' in answer.content
    (call,) = handler.calls
    assert call.messages[1].function_calls[0].arguments == (
        '{"n":123456789012345678901234567890,"x":-1.7976931348623157e+308,"y":0.5}'
    )
    assert call.tools[0]["function"]["parameters"]["maximum"] == 2**64
    codes = [error.json()["error"]["details"]["error_code"] for error in (refused, constant)]
    assert codes == ["agent.invalid_field", "agent.not_json"]


@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize(
    ("refusal", "kind", "name"),
    [
        (Refusal.INVALID, anthropic.BadRequestError, "invalid_request_error"),
        (Refusal.LIMIT, anthropic.BadRequestError, "invalid_request_error"),
        (Refusal.UNAUTHENTICATED, anthropic.AuthenticationError, "authentication_error"),
        (Refusal.NOT_FOUND, anthropic.NotFoundError, "not_found_error"),
        (Refusal.ENDED, anthropic.ConflictError, "conflict_error"),
        (Refusal.TOO_LARGE, anthropic.APIStatusError, "request_too_large"),
        (Refusal.BUSY, anthropic.RateLimitError, "rate_limit_error"),
    ],
)
async def test_refusals_raise_the_exception_of_the_sdk(
    refusal: Refusal, kind: type[anthropic.APIStatusError], name: str, is_streaming: bool
) -> None:
    def refuse(_: Any) -> Any:
        raise CallRefused("cannot do it: x; y", refusal=refusal, code="test.refused", retry_after_s=7)

    async with client(ScriptedHandler(refuse), max_retries=0) as sdk:
        with pytest.raises(kind) as raised:
            await sdk.messages.create(model="m", max_tokens=9, messages=HELLO, stream=is_streaming)
    assert (raised.value.type, raised.value.error_code) == (name, "test.refused")
    assert raised.value.response.headers.get("retry-after") == ("7" if refusal is Refusal.BUSY else None)


async def test_a_refusal_after_a_stream_has_begun_is_an_event() -> None:
    async def refuse(_: Any) -> Any:
        await asyncio.sleep(0.05)
        raise CallRefused("cannot do it: x; y", refusal=Refusal.LIMIT, code="test.limit")

    async with client(ScriptedHandler(refuse), WAITING, max_retries=0) as sdk:
        with pytest.raises(anthropic.APIStatusError) as raised:
            async with sdk.messages.stream(model="m", max_tokens=9, messages=HELLO) as stream:
                await stream.get_final_message()
    assert raised.value.error_code == "test.limit"


async def test_a_stream_that_waits_gets_comments_and_repeats_what_was_busy() -> None:
    async def answer(_: Any) -> Any:
        await asyncio.sleep(0.05)
        if len(handler.calls) == 1:
            raise CallRefused("x", refusal=Refusal.BUSY, code="test.busy", retry_after_s=0)
        return text_reply("late")

    handler = ScriptedHandler(answer)
    body: Any = {"model": "m", "max_tokens": 9, "messages": HELLO}
    async with client(handler, WAITING, max_retries=0) as sdk:
        async with sdk.messages.stream(**body) as stream:
            message = await stream.get_final_message()
        raw = await sdk.messages.with_raw_response.create(**body, stream=True)
        text = (await raw.http_response.aread()).decode()
    assert message.content[0].type == "text"
    assert message.content[0].text == "late"
    assert text.startswith(": ")
    assert len(handler.calls) == 3


async def test_a_client_that_leaves_cancels_the_call() -> None:
    async def wait(_: Any) -> Any:
        await asyncio.Event().wait()

    handler = ScriptedHandler(wait)
    async with client(handler) as sdk:
        task = asyncio.create_task(sdk.messages.create(model="m", max_tokens=9, messages=HELLO))
        await eventually(lambda: handler.waiting == 1)
        task.cancel()
        await eventually(lambda: handler.waiting == 0)
    assert (len(handler.calls), handler.cancelled) == (1, 1)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"messages": []}, "agent.no_messages"),
        ({"messages": [*HELLO, {"role": "assistant", "content": "The answer is"}]}, "agent.prefill_not_supported"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "agent.unsupported_content"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "agent.unsupported_content"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "agent.invalid_field"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "agent.unsupported_role"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "agent.unsupported_tool"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "agent.unknown_tool"),
        ({"output_config": {"format": {"type": "xml"}}}, "agent.unsupported_format"),
        ({"max_tokens": 0}, "agent.invalid_field"),
        ({"mcp_servers": [{"url": "x"}]}, "agent.unsupported_field"),
    ],
)
async def test_a_request_without_an_answer_is_refused_with_a_code(change: dict[str, Any], code: str) -> None:
    handler = ScriptedHandler()
    async with client(handler) as sdk:
        with pytest.raises(anthropic.BadRequestError) as raised:
            body = {"model": "m", "max_tokens": 9, "messages": HELLO, **change}
            await sdk.post("/v1/messages", body=body, cast_to=object)
    assert raised.value.error_code == code
    assert not handler.calls


async def test_models_are_listed_in_the_words_of_the_api() -> None:
    async with client(ScriptedHandler()) as sdk:
        assert [model.id async for model in sdk.models.list()] == ["policy", "critic"]
        assert (await sdk.models.retrieve("critic")).display_name == "critic"
        with pytest.raises(anthropic.NotFoundError):
            await sdk.models.retrieve("other")
