"""Agents written against the official SDKs, which know nothing of AstraFlow: their tokens are trained exactly."""

import json
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import MessageParam, ToolUseBlock
from openai.types.chat import ChatCompletionMessageFunctionToolCall, ChatCompletionMessageParam
from openai.types.responses import ResponseFunctionToolCall, ResponseInputParam

from astraflow.agents.session_limits import SessionOptions
from astraflow.contract.rollouts.agent_calls import CallOutcome
from astraflow.contract.rollouts.trajectories import Trajectory
from tests.agents.clients.sessions import ClientSession, client_session
from tests.fakes.deciding_policy import DecidingPolicy, Step, hermes_call, in_steps

pytestmark = pytest.mark.anyio

QUESTION = "What is 1234 times 5678, and what is 12 times 12? Use the tool."
ANSWER = "The products are 7006652 and 144."
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
MULTIPLIES = in_steps(
    "I multiply.\n" + hermes_call("multiply", a=1234, b=5678) + "\n" + hermes_call("multiply", a=12, b=12),
    Step("7006652", ANSWER),
)
"""Two calls at once, and an answer that needs their results."""


def product(arguments: str | dict[str, Any]) -> str:
    operands = json.loads(arguments) if isinstance(arguments, str) else arguments
    return str(operands["a"] * operands["b"])


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the variables of a session, from which the clients read address and key."""

    def set_all(session: ClientSession) -> None:
        for name, value in session.access.environment.items():
            monkeypatch.setenv(name, value)

    return set_all


def assert_one_conversation(session: ClientSession, dialect: str) -> Trajectory:
    """Checks the trajectory of two turns and the recorded calls, and returns the trajectory."""
    (trajectory,) = session.trajectories(turns=[2])
    assert [call.dialect for call in trajectory.calls if call.turn is not None] == [dialect] * 2
    assert [call.turn for call in trajectory.calls if call.turn is not None] == [0, 1]
    assert all(session.access.secret not in call.request + call.reply for call in session.calls)
    return trajectory


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_an_agent_on_chat_completions(environment: Any, is_streaming: bool) -> None:
    tool: Any = {"type": "function", "function": {"name": "multiply", "parameters": PARAMETERS}}
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]
    async with client_session(DecidingPolicy(MULTIPLIES)) as session:
        environment(session)
        async with openai.AsyncOpenAI() as client:
            while True:
                request: Any = {"model": "gpt-5-mini", "messages": messages, "tools": [tool]}
                if is_streaming:
                    async with client.chat.completions.stream(**request) as stream:
                        completion: Any = await stream.get_final_completion()
                else:
                    completion = await client.chat.completions.create(**request)
                message = completion.choices[0].message
                messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
                if not message.tool_calls:
                    break
                for call in message.tool_calls:
                    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
                    content = product(call.function.arguments)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
        assert message.content == ANSWER
        assert_one_conversation(session, "chat")


@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize("is_stateful", [False, True], ids=["resends", "previous_response_id"])
async def test_an_agent_on_responses(environment: Any, is_streaming: bool, is_stateful: bool) -> None:
    tool: Any = {"type": "function", "name": "multiply", "parameters": PARAMETERS, "strict": False}
    items: ResponseInputParam = [{"role": "user", "content": QUESTION}]
    previous: str | None = None
    async with client_session(DecidingPolicy(MULTIPLIES)) as session:
        environment(session)
        async with openai.AsyncOpenAI() as client:
            while True:
                request: Any = {"model": "gpt-5-mini", "input": items, "tools": [tool]}
                if is_stateful and previous:
                    request["previous_response_id"] = previous
                if is_streaming:
                    async with client.responses.stream(**request) as stream:
                        response: Any = await stream.get_final_response()
                else:
                    response = await client.responses.create(**request)
                calls = [item for item in response.output if isinstance(item, ResponseFunctionToolCall)]
                if not calls:
                    break
                previous = response.id
                items = [] if is_stateful else items + response.output
                items += [
                    {"type": "function_call_output", "call_id": call.call_id, "output": product(call.arguments)}
                    for call in calls
                ]
        assert response.output_text == ANSWER
        assert_one_conversation(session, "responses")


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_an_agent_on_messages(environment: Any, is_streaming: bool) -> None:
    tool: Any = {"name": "multiply", "input_schema": PARAMETERS}
    messages: list[MessageParam] = [{"role": "user", "content": QUESTION}]
    async with client_session(DecidingPolicy(MULTIPLIES)) as session:
        environment(session)
        async with anthropic.AsyncAnthropic() as client:
            while True:
                request: Any = {"model": "claude-sonnet-5", "max_tokens": 500, "messages": messages, "tools": [tool]}
                counted = await client.messages.count_tokens(model=request["model"], messages=messages, tools=[tool])
                if is_streaming:
                    async with client.messages.stream(**request) as stream:
                        message: Any = await stream.get_final_message()
                else:
                    message = await client.messages.create(**request)
                assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == counted.input_tokens
                messages.append({"role": "assistant", "content": message.content})
                calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
                if not calls:
                    break
                results: Any = [
                    {"type": "tool_result", "tool_use_id": call.id, "content": product(call.input)} for call in calls
                ]
                messages.append({"role": "user", "content": results})
        assert [block.text for block in message.content] == [ANSWER]
        assert_one_conversation(session, "messages")


async def test_sdks_of_both_vendors_share_a_session(environment: Any) -> None:
    async with client_session(DecidingPolicy(in_steps("Yes.", Step("second", "No.")))) as session:
        environment(session)
        async with openai.AsyncOpenAI() as first, anthropic.AsyncAnthropic() as second:
            question: Any = [{"role": "user", "content": "The first?"}]
            await first.chat.completions.create(model="policy", messages=question)
            other: Any = [{"role": "user", "content": "The second?"}]
            await second.messages.create(model="policy", max_tokens=50, messages=other)
            assert [model.id async for model in first.models.list()] == ["policy"]
            assert [model.id async for model in second.models.list()] == ["policy"]
        session.trajectories(turns=[1, 1])


async def test_a_conversation_that_is_too_long_is_refused_in_the_words_of_each_api(
    environment: Any,
) -> None:
    question: Any = [{"role": "user", "content": "word " * 100}]
    options = SessionOptions(max_context=200)
    async with client_session(DecidingPolicy(in_steps("Yes.")), options) as session:
        environment(session)
        async with openai.AsyncOpenAI() as first, anthropic.AsyncAnthropic() as second:
            with pytest.raises(openai.BadRequestError) as chat:
                await first.chat.completions.create(model="policy", messages=question)
            with pytest.raises(openai.BadRequestError) as responses:
                await first.responses.create(model="policy", input=question)
            with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 200 maximum"):
                await second.messages.create(model="policy", max_tokens=50, messages=question)
    assert chat.value.code == responses.value.code == "context_length_exceeded"
    assert "maximum context length is 200 tokens" in chat.value.message
    assert [call.outcome for call in session.calls] == [CallOutcome.REFUSED] * 3, "no client sends it again"
