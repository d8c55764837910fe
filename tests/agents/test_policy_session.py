"""Sessions of agent programs with policies that answer by script."""

import json

import numpy as np
import pytest

from astraflow.agents.calls import AgentMessage, CallOptions, FunctionCall, ModelCall, ReplyFinish, Role
from astraflow.agents.policy_session import PolicySession
from astraflow.agents.session_limits import SessionOptions
from astraflow.contract.ids import PolicyId
from astraflow.contract.spans import Author, Ending
from tests.fakes.policy import FakePolicy

pytestmark = pytest.mark.anyio

SOLVER = PolicyId("solver")
ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}


def said(text: str) -> AgentMessage:
    return AgentMessage(role=Role.USER, content=text)


def asked(*messages: AgentMessage, model: str = "solver", tools: bool = True) -> ModelCall:
    return ModelCall(options=CallOptions(model=model), messages=messages, tools=(ADD,) if tools else ())


def session(policy: FakePolicy, **options: object) -> PolicySession:
    return PolicySession({SOLVER: policy}, SessionOptions.model_validate(options), default=SOLVER)


async def test_a_conversation_with_a_tool_is_one_trajectory_of_the_exact_tokens() -> None:
    policy = FakePolicy('<tool_call>{"name": "add", "arguments": {"b": 2, "a": 1}}</tool_call>', "It is 3.")
    agent = session(policy)
    first = await agent.complete(asked(said("1+2?")))
    assert first.finish is ReplyFinish.FUNCTION_CALLS
    (call,) = first.message.function_calls
    assert (call.name, json.loads(call.arguments)) == ("add", {"a": 1, "b": 2})

    sent = AgentMessage(
        role=Role.ASSISTANT, function_calls=(FunctionCall(id="x", name="add", arguments='{"a":1,"b":2}'),)
    )
    result = AgentMessage(role=Role.TOOL, content="3", call_id="x")
    second = await agent.complete(asked(said("1+2?"), sent, result))

    assert second.message.content == "It is 3."
    assert second.cached_tokens == first.prompt_tokens + first.completion_tokens
    assert agent.conversation(second.id)[-1] == second.message
    (trajectory,) = agent.trajectories(1.0)
    assert trajectory.tokens[: len(policy.prompts[1])].tolist() == policy.prompts[1].tolist()
    assert np.count_nonzero(trajectory.loss_mask()) == first.completion_tokens + second.completion_tokens
    assert [span.author for span in trajectory.spans] == [Author.CONTEXT, Author.MODEL] * 2
    assert (trajectory.role, trajectory.ending, trajectory.reward) == ("solver", Ending.DONE, 1.0)
    assert "<tool_response>\n3\n</tool_response>" in policy.asked(1)
