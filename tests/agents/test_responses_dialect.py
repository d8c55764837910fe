"""The official OpenAI SDK with responses, against the proxy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import orjson
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from pydantic import BaseModel

from astraflow.agents.calls import AgentMessage, CallRefused, FunctionCall, Refusal, ReplyFinish, Role
from astraflow.agents.proxy.server import ProxyOptions
from tests.agents.strict_models import strictly
from tests.fakes.agent_handlers import ScriptedHandler, calls_reply, serving, text_reply

pytestmark = pytest.mark.anyio

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
TWO_CALLS = calls_reply(("call_a", "weather", '{"city":"Oslo"}'), ("call_b", "f", "{}"), text="Look:", reasoning="Hm.")


@asynccontextmanager
async def client(
    handler: ScriptedHandler, proxy: ProxyOptions | None = None, **options: Any
) -> AsyncIterator[openai.AsyncOpenAI]:
    async with serving(handler, proxy) as access:
        environment = access.environment
        async with openai.AsyncOpenAI(
            base_url=environment["OPENAI_BASE_URL"], api_key=environment["OPENAI_API_KEY"], **options
        ) as sdk:
            yield sdk


async def test_a_plain_call_reaches_the_handler_with_all_its_options() -> None:
    handler = ScriptedHandler(lambda _: text_reply("Hi"))
    async with client(handler) as sdk:
        response = await sdk.responses.create(
            model="policy",
            instructions="Be kind.",
            input="Hello",
            temperature=0.5,
            top_p=0.9,
            max_output_tokens=16,
            metadata={"a": "b"},
            parallel_tool_calls=False,
            store=False,
        )
    assert response.output_text == "Hi"
    assert (response.status, response.metadata, response.parallel_tool_calls) == ("completed", {"a": "b"}, False)
    assert response.usage is not None
    assert response.usage.total_tokens == len("Be kind.HelloHi")
    (call,) = handler.calls
    assert call.messages == (
        AgentMessage(role=Role.SYSTEM, content="Be kind."),
        AgentMessage(role=Role.USER, content="Hello"),
    )
    options = call.options
    assert (options.model, options.max_tokens, options.temperature, options.top_p) == ("policy", 16, 0.5, 0.9)
    assert not call.allows_parallel_calls


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_output_items_sent_back_are_the_same_message(is_encrypted: bool) -> None:
    handler = ScriptedHandler(lambda call: text_reply("Done") if len(call.messages) > 1 else TWO_CALLS)
    include: Any = ["reasoning.encrypted_content"] if is_encrypted else []
    async with client(handler) as sdk:
        conversation: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]
        first = await sdk.responses.create(model="m", input=conversation, tools=[WEATHER], include=include)
        items: list[Any] = [item.model_dump(exclude_none=True) for item in first.output]
        if is_encrypted:  # as clients do that keep the conversation themselves
            items[0].pop("content")
        outputs = [
            {"type": "function_call_output", "call_id": "call_a", "output": "rain"},
            {"type": "function_call_output", "call_id": "call_b", "output": [{"type": "input_text", "text": "sun"}]},
        ]
        conversation += [*items, *outputs]
        choice: Any = {"type": "function", "name": "weather"}
        second = await sdk.responses.create(model="m", input=conversation, tools=[WEATHER], tool_choice=choice)
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call", "function_call"]
    assert second.output_text == "Done"
    sent = handler.calls[1]
    assert sent.messages == (
        AgentMessage(role=Role.USER, content="Hello"),
        TWO_CALLS,
        AgentMessage(role=Role.TOOL, content="rain", call_id="call_a"),
        AgentMessage(role=Role.TOOL, content="sun", call_id="call_b"),
    )
    assert sent.tool_choice == "weather"


async def test_items_of_earlier_replies_are_sent_by_their_ids() -> None:
    handler = ScriptedHandler(lambda call: text_reply("Done") if len(call.messages) > 1 else TWO_CALLS)
    async with client(handler) as sdk:
        conversation: list[Any] = [{"role": "user", "content": "Hello"}]
        first = await sdk.responses.create(model="m", input=conversation, tools=[WEATHER])
        conversation += [{"type": "item_reference", "id": item.id} for item in first.output]
        await sdk.responses.create(model="m", input=conversation, tools=[WEATHER])
        for unknown in ("msg_other", "fc_r0_7", "x"):
            with pytest.raises(openai.NotFoundError):
                reference: Any = {"type": "item_reference", "id": unknown}
                await sdk.responses.create(model="m", input=[reference])
    assert handler.calls[1].messages == (AgentMessage(role=Role.USER, content="Hello"), TWO_CALLS)


async def test_a_response_continues_an_earlier_one_without_its_instructions() -> None:
    handler = ScriptedHandler(lambda call: text_reply(f"reply {len(call.messages)}", reasoning="r"))
    async with client(handler) as sdk:
        first = await sdk.responses.create(model="m", instructions="One.", input="Hello")
        second = await sdk.responses.create(model="m", input="And?", previous_response_id=first.id)
        third = await sdk.responses.create(model="m", instructions="Two.", input="So?", previous_response_id=second.id)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.create(model="m", input="x", previous_response_id="resp_unknown")
        stored = await sdk.responses.retrieve(third.id)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve("resp_unknown")
    assert stored == third
    assert third.previous_response_id == second.id
    assert [message.content for message in handler.calls[1].messages] == ["Hello", "reply 2", "And?"]
    assert [message.content for message in handler.calls[2].messages] == [
        "Two.",
        "Hello",
        "reply 2",
        "And?",
        "reply 3",
        "So?",
    ]


async def test_functions_of_a_namespace_have_its_name_and_hosted_tools_are_left_out() -> None:
    handler = ScriptedHandler(
        lambda call: text_reply("Done") if len(call.messages) > 1 else calls_reply(("call_a", "weather.today", "{}"))
    )
    today = {"type": "function", "name": "today", "strict": False, "parameters": {"type": "object"}}
    namespace = {"type": "namespace", "name": "weather", "description": "Weather", "tools": [today]}
    request: Any = {"model": "policy", "tools": [{"type": "web_search"}, WEATHER, namespace]}
    async with client(handler) as sdk:
        first = await sdk.responses.create(input="Hello", **request)
        item: Any = first.output[0].to_dict()
        output: Any = {"type": "function_call_output", "call_id": "call_a", "output": "Sun"}
        history: Any = [{"role": "user", "content": "Hello"}, item, output]
        await sdk.responses.create(input=history, **request)
    assert (item["namespace"], item["name"]) == ("weather", "today")
    assert [tool["function"]["name"] for tool in handler.calls[0].tools] == ["weather", "weather.today"]
    assert handler.calls[1].messages[1].function_calls[0].name == "weather.today"


async def test_consecutive_replies_stay_apart() -> None:
    handler = ScriptedHandler()
    items: list[Any] = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "c"}]},
        {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"},
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "not base64!"},
        {"role": "assistant", "content": "d"},
    ]
    async with client(handler) as sdk:
        await sdk.responses.create(model="m", input=items)
    assistant = [message for message in handler.calls[0].messages if message.role is Role.ASSISTANT]
    assert [(message.reasoning, message.content) for message in assistant] == [
        ("hm", "b"),
        (None, "c"),
        (None, "d"),
    ]
    assert assistant[1].function_calls == (FunctionCall(id="x", name="f", arguments="{}"),)


@pytest.mark.long
async def test_streams_give_the_same_response_as_plain_calls() -> None:
    async with client(ScriptedHandler(lambda _: TWO_CALLS)) as sdk:
        plain = await sdk.responses.create(model="m", input="Hello", tools=[WEATHER])
        async with sdk.responses.stream(model="m", input="Hello", tools=[WEATHER]) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_response()
    assert [item.type for item in streamed.output] == [item.type for item in plain.output]
    assert streamed.output_text == plain.output_text == "Look:"
    assert streamed.usage == plain.usage
    calls: list[Any] = [item for item in streamed.output if item.type == "function_call"]
    assert [(call.call_id, call.arguments) for call in calls] == [("call_a", '{"city":"Oslo"}'), ("call_b", "{}")]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert "response.reasoning_text.delta" in kinds
    assert kinds[-1] == "response.completed"


@pytest.mark.long
async def test_structured_outputs_carry_their_schema() -> None:
    class Answer(BaseModel):
        value: int

    handler = ScriptedHandler(lambda _: text_reply('{"value": 3}'))
    async with client(handler) as sdk:
        response = await sdk.responses.parse(model="m", input="Hello", text_format=Answer)
    assert response.output_parsed == Answer(value=3)
    schema = orjson.loads(handler.calls[0].options.json_schema)
    assert schema["properties"]["value"]["type"] == "integer"


async def test_tokens_are_counted() -> None:
    async with client(ScriptedHandler()) as sdk:
        counted = await sdk.responses.input_tokens.count(model="m", input="Hello", instructions="ab")
    assert counted.input_tokens == len("abHello")
    strictly(InputTokenCountResponse, counted.model_dump())


@pytest.mark.long
@pytest.mark.parametrize("message", [TWO_CALLS, text_reply(""), text_reply("x", reasoning="")])
@pytest.mark.parametrize("finish", list(ReplyFinish))
async def test_bodies_and_events_are_valid_in_strict_mode(finish: ReplyFinish, message: AgentMessage) -> None:
    handler = ScriptedHandler(lambda _: message, finish=finish)
    async with serving(handler) as access, httpx.AsyncClient(base_url=access.url) as raw:
        body = {"model": "m", "input": "Hello", "tools": [WEATHER], "metadata": {"a": "b"}}
        plain = await raw.post("/v1/responses", json=body)
        streamed = await raw.post("/v1/responses", json={**body, "stream": True})
    response = strictly(Response, plain.json())
    is_cut = finish is ReplyFinish.LENGTH
    assert response.status == ("incomplete" if is_cut else "completed")
    for number, event in enumerate(streamed.text.strip().split("\n\n")):
        name, data = event.split("\n")
        parsed: Any = strictly(ResponseStreamEvent, orjson.loads(data.removeprefix("data: ")), extra=("name",))  # type: ignore[arg-type]
        assert (name, parsed.sequence_number) == (f"event: {parsed.type}", number)
    assert parsed.type == ("response.incomplete" if is_cut else "response.completed")


async def test_a_refusal_after_a_stream_has_begun_is_raised_by_the_sdk() -> None:
    async def refuse(_: Any) -> Any:
        await asyncio.sleep(0.05)
        raise CallRefused("cannot do it: x; y", refusal=Refusal.LIMIT, code="test.limit")

    handler = ScriptedHandler(refuse)
    async with client(handler, ProxyOptions(first_byte_s=0.0, keep_alive_s=0.01), max_retries=0) as sdk:
        stream = await sdk.responses.create(model="m", input="Hello", stream=True)
        with pytest.raises(openai.APIError) as raised:
            [event async for event in stream]
        chunks = await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True)
        with pytest.raises(openai.APIError) as raised_by_chat:
            [chunk async for chunk in chunks]
    assert raised.value.code == raised_by_chat.value.code == "test.limit"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"input": []}, "agent.no_messages"),
        ({"input": [{"type": "item_reference"}]}, "agent.invalid_field"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "agent.unsupported_content"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "agent.unsupported_content"),
        ({"input": [{"role": "robot", "content": "x"}]}, "agent.unsupported_role"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "agent.invalid_field"),
        ({"background": True}, "agent.unsupported_field"),
        ({"conversation": "conv_1"}, "agent.unsupported_field"),
        ({"include": ["message.output_text.logprobs"]}, "agent.unsupported_field"),
        ({"tools": [{"type": "file_search"}]}, "agent.unsupported_tool"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]}, "agent.unsupported_tool"),
        ({"tools": [{"type": "custom", "name": "f"}]}, "agent.unsupported_tool"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "agent.unknown_tool"),
        ({"tool_choice": {"type": "allowed_tools"}}, "agent.unsupported_tool_choice"),
        ({"text": {"format": {"type": "grammar"}}}, "agent.unsupported_format"),
        ({"max_output_tokens": "many"}, "agent.invalid_field"),
    ],
)
async def test_a_request_without_an_answer_is_refused_with_a_code(change: dict[str, Any], code: str) -> None:
    handler = ScriptedHandler()
    async with client(handler) as sdk:
        with pytest.raises(openai.BadRequestError) as raised:
            await sdk.post("/responses", body={"model": "m", "input": "Hello", **change}, cast_to=object)
    assert raised.value.code == code
    assert not handler.calls
