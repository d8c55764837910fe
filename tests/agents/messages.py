"""Short forms of messages and calls of agents."""

import json
from typing import Any

from astraflow.agents.calls import AgentMessage, CallOptions, FunctionCall, ModelCall, Role
from astraflow.models.tokenizers import ToolSchema

ADD: ToolSchema = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
}


def system(text: str) -> AgentMessage:
    return AgentMessage(role=Role.SYSTEM, content=text)


def user(text: str) -> AgentMessage:
    return AgentMessage(role=Role.USER, content=text)


def assistant(text: str, *calls: FunctionCall, reasoning: str | None = None) -> AgentMessage:
    return AgentMessage(role=Role.ASSISTANT, content=text, reasoning=reasoning, function_calls=calls)


def result(text: str, call_id: str) -> AgentMessage:
    return AgentMessage(role=Role.TOOL, content=text, call_id=call_id)


def add(**arguments: Any) -> FunctionCall:
    return FunctionCall(id="client_id", name="add", arguments=json.dumps(arguments))


def written(name: str, **arguments: Any) -> str:
    """Returns a function call as a policy writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def call(*messages: AgentMessage, tools: tuple[ToolSchema, ...] = (), **options: Any) -> ModelCall:
    """Returns a call. options: of the call, or fields of `CallOptions`."""
    fields = {name: options.pop(name) for name in ("tool_choice", "allows_parallel_calls") if name in options}
    return ModelCall(
        options=CallOptions(**{"model": "solver", **options}), messages=tuple(messages), tools=tools, **fields
    )
