"""Requests and replies of hosted endpoints: OpenAI's Chat Completions and Anthropic's Messages."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from astraflow.agents.calls import (
    AgentMessage,
    CallRefused,
    FunctionCall,
    ModelCall,
    Refusal,
    ReplyFinish,
    Role,
)
from astraflow.agents.dialects.dialect import json_value
from astraflow.contract.values import Json
from astraflow.models.tokenizers import ToolSchema

DEFAULT_REPLY_TOKENS = 4096
"""Length limit of a reply where the client gives none and the API requires one. Tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamReply:
    """Reply of an endpoint. The counts are the endpoint's own; 0 where it reports none."""

    message: AgentMessage
    finish: ReplyFinish
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class UpstreamFormat(Protocol):
    """API of an endpoint."""

    path: str
    """Path after the base URL, which ends with the version."""

    def headers(self, key: str) -> dict[str, str]:
        """Returns the headers of a request. key: empty for none."""

    def body(self, call: ModelCall) -> dict[str, Json]:
        """Returns the body of a request. Raises: CallRefused when the API cannot express it."""

    def reply(self, body: Any) -> UpstreamReply:
        """Returns the reply in a response. Raises: ValueError, LookupError, TypeError, AttributeError for others."""


class ChatCompletions:
    """Chat Completions: OpenAI, vLLM, SGLang, and most gateways."""

    path = "/chat/completions"

    def __init__(self, length_field: str) -> None:
        """length_field: `max_tokens`, or `max_completion_tokens` as newer models of OpenAI require."""
        self._length_field = length_field

    def headers(self, key: str) -> dict[str, str]:
        """Returns the header with the bearer token."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def body(self, call: ModelCall) -> dict[str, Json]:
        """Returns the body; options that the client left out are left out."""
        options = call.options
        body: dict[str, Json] = {
            "model": options.model,
            "messages": [_chat_message(message) for message in call.messages],
        }
        values: dict[str, Json] = {
            self._length_field: options.max_tokens,
            "temperature": options.temperature,
            "top_p": options.top_p,
            "stop": list(options.stop) or None,
        }
        if options.json_schema:
            schema = {"name": "reply", "schema": json.loads(options.json_schema)}
            values["response_format"] = {"type": "json_schema", "json_schema": schema}
        if call.tools:
            values["tools"] = [dict(tool) for tool in call.tools]
            values["tool_choice"] = _chat_choice(call.tool_choice)
            values["parallel_tool_calls"] = None if call.allows_parallel_calls else False
        return body | {name: value for name, value in values.items() if value is not None}

    def reply(self, body: Any) -> UpstreamReply:
        """Returns the first choice."""
        choice = body["choices"][0]
        message = choice["message"]
        calls = tuple(_chat_call(call) for call in message.get("tool_calls") or ())
        usage = body.get("usage") or {}
        text, reasoning = _text(message.get("content")), message.get("reasoning_content") or message.get("reasoning")
        return UpstreamReply(
            message=AgentMessage(
                role=Role.ASSISTANT,
                content=text,
                reasoning=reasoning if isinstance(reasoning, str) else None,
                function_calls=calls,
            ),
            finish=_finish(has_calls=bool(calls), is_cut=choice.get("finish_reason") == "length"),
            prompt_tokens=_count(usage, "prompt_tokens"),
            cached_tokens=_count(usage.get("prompt_tokens_details") or {}, "cached_tokens"),
            completion_tokens=_count(usage, "completion_tokens"),
        )


class AnthropicMessages:
    """Messages API of Anthropic. Thoughts of earlier turns are not sent back: their signatures are not kept."""

    path = "/messages"

    def headers(self, key: str) -> dict[str, str]:
        return {"anthropic-version": "2023-06-01"} | ({"x-api-key": key} if key else {})

    def body(self, call: ModelCall) -> dict[str, Json]:
        """Returns the body. Raises: CallRefused for a JSON schema."""
        options = call.options
        if options.json_schema:
            raise CallRefused(
                "cannot ask for a reply that matches a JSON schema: this API has no such option; use an endpoint of "
                "Chat Completions",
                refusal=Refusal.INVALID,
                code="upstream.no_json_schema",
            )
        values: dict[str, Json] = {
            "system": "\n\n".join(message.content for message in call.messages if message.role is Role.SYSTEM) or None,
            "temperature": options.temperature,
            "top_p": options.top_p,
            "stop_sequences": list(options.stop) or None,
        }
        if call.tools:
            values["tools"] = [_anthropic_tool(tool) for tool in call.tools]
            values["tool_choice"] = _anthropic_choice(call)
        body: dict[str, Json] = {
            "model": options.model,
            "max_tokens": options.max_tokens or DEFAULT_REPLY_TOKENS,
            "messages": list(
                _anthropic_messages(message for message in call.messages if message.role is not Role.SYSTEM)
            ),
        }
        return body | {name: value for name, value in values.items() if value is not None}

    def reply(self, body: Any) -> UpstreamReply:
        """Returns the content blocks as one message."""
        blocks: Sequence[Mapping[str, Any]] = body["content"]
        calls = tuple(
            FunctionCall(id=str(block["id"]), name=str(block["name"]), arguments=json.dumps(block["input"]))
            for block in blocks
            if block["type"] == "tool_use"
        )
        thoughts = [str(block["thinking"]) for block in blocks if block["type"] == "thinking"]
        usage = body.get("usage") or {}
        cached = _count(usage, "cache_read_input_tokens")
        return UpstreamReply(
            message=AgentMessage(
                role=Role.ASSISTANT,
                content="".join(str(block["text"]) for block in blocks if block["type"] == "text"),
                reasoning="\n".join(thoughts) or None,
                function_calls=calls,
            ),
            finish=_finish(has_calls=bool(calls), is_cut=body.get("stop_reason") == "max_tokens"),
            prompt_tokens=_count(usage, "input_tokens") + _count(usage, "cache_creation_input_tokens") + cached,
            cached_tokens=cached,
            completion_tokens=_count(usage, "output_tokens"),
        )


def _chat_message(message: AgentMessage) -> dict[str, Json]:
    if message.role is Role.TOOL:
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.content}
    if not message.function_calls:
        return {"role": message.role.value, "content": message.content}
    calls: list[Json] = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.function_calls
    ]
    return {"role": message.role.value, "content": message.content or None, "tool_calls": calls}


def _chat_choice(choice: str) -> Json:
    return choice if choice in ("auto", "none", "required") else {"type": "function", "function": {"name": choice}}


def _chat_call(call: Mapping[str, Any]) -> FunctionCall:
    function = call["function"]
    return FunctionCall(id=str(call["id"]), name=str(function["name"]), arguments=str(function["arguments"]))


def _anthropic_messages(messages: Iterable[AgentMessage]) -> Iterator[dict[str, Json]]:
    """Yields the messages; neighbours of one role are one message, as results of parallel calls must be."""
    role, blocks = "", list[Json]()
    for message in messages:
        next_role = "assistant" if message.role is Role.ASSISTANT else "user"
        if next_role != role and blocks:
            yield {"role": role, "content": blocks}
            blocks = []
        role = next_role
        blocks += _anthropic_blocks(message)
    if blocks:
        yield {"role": role, "content": blocks}


def _anthropic_blocks(message: AgentMessage) -> list[Json]:
    if message.role is Role.TOOL:
        return [{"type": "tool_result", "tool_use_id": message.call_id, "content": message.content}]
    text: list[Json] = [{"type": "text", "text": message.content}] if message.content else []
    return text + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json_value(call.arguments.encode() or b"{}")}
        for call in message.function_calls
    ]


def _anthropic_tool(tool: ToolSchema) -> dict[str, Json]:
    function = tool["function"]
    return {
        "name": function["name"],
        "description": function.get("description", ""),
        "input_schema": function.get("parameters") or {"type": "object", "properties": {}},
    }


def _anthropic_choice(call: ModelCall) -> dict[str, Json]:
    kinds = {"auto": "auto", "none": "none", "required": "any"}
    kind = kinds.get(call.tool_choice, "tool")
    choice: dict[str, Json] = {"type": kind}
    if kind == "tool":
        choice["name"] = call.tool_choice
    if kind != "none" and not call.allows_parallel_calls:
        choice["disable_parallel_tool_use"] = True
    return choice


def _finish(*, has_calls: bool, is_cut: bool) -> ReplyFinish:
    if is_cut:
        return ReplyFinish.LENGTH
    return ReplyFinish.FUNCTION_CALLS if has_calls else ReplyFinish.STOP


def _text(content: object) -> str:
    """Returns the text of a content, which is a text, parts, or absent. Raises: TypeError for anything else."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "".join(str(part["text"]) for part in content if part.get("type") == "text")
    raise TypeError(f"a content of type {type(content).__name__}")


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return max(0, value) if isinstance(value, int) else 0
