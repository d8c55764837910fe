"""Dialect of `POST /v1/chat/completions`."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from astraflow.agents.calls import (
    AgentMessage,
    CallOptions,
    CallRefused,
    FunctionCall,
    ModelCall,
    ModelReply,
    ReplyFinish,
    Role,
)
from astraflow.agents.dialects import fields
from astraflow.agents.dialects.dialect import (
    CallContext,
    InvalidCall,
    Json,
    ParsedCall,
    ParsedMessages,
    event,
    openai_error,
)
from astraflow.models.tokenizers import ToolSchema

_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
}
_FINISH = {
    ReplyFinish.STOP: "stop",
    ReplyFinish.LENGTH: "length",
    ReplyFinish.FUNCTION_CALLS: "tool_calls",
}
_UNSUPPORTED = {
    "functions": "use `tools`",
    "function_call": "use `tool_choice`",
    "logprobs": "leave it out: the run records log probabilities itself",
    "top_logprobs": "leave it out: the run records log probabilities itself",
    "audio": "leave it out: replies are text",
    "web_search_options": "search with a tool of the agent",
}


class ChatDialect:
    """OpenAI's chat completions, with `reasoning_content` as other servers and clients use it."""

    name = "chat"

    def parse(self, body: Json, context: CallContext) -> ParsedCall[ModelCall]:
        """Returns the request. Raises: CallRefused."""
        fields.refuse_fields(body, _UNSUPPORTED)
        refuse_several(body)
        fields.includes_usage(body)  # what the answer needs is checked before a reply is sampled and trained
        tools = tuple(
            fields.function_tool(tool, fields.mapping(tool, "function"), where)
            for where, tool in fields.objects(body, "tools")
        )
        options = CallOptions(
            model=fields.text(body, "model"),
            max_tokens=fields.count(body, "max_completion_tokens") or fields.count(body, "max_tokens"),
            temperature=fields.number(body, "temperature", most=100.0),
            top_p=fields.number(body, "top_p", most=1.0),
            stop=fields.strings(body, "stop"),
            json_schema=_json_schema(body),
            retry_key=context.retry_key,
            is_retry=context.is_retry,
        )
        call = ModelCall(
            options=options,
            messages=_messages(body, context.known),
            tools=tools,
            tool_choice=_tool_choice(body.get("tool_choice"), tools),
            allows_parallel_calls=fields.flag(body, "parallel_tool_calls", default=True),
        )
        return ParsedCall(call=call, body=body, context=context, is_streaming=fields.flag(body, "stream"))

    def reply(self, parsed: ParsedCall[ModelCall], reply: ModelReply) -> Json:
        """Returns a chat completion."""
        message: Json = {"role": "assistant", "content": reply.message.content, "refusal": None}
        if reply.message.reasoning is not None:
            message["reasoning_content"] = reply.message.reasoning
        if reply.message.function_calls:
            message["content"] = reply.message.content or None
            message["tool_calls"] = [_tool_call(call) for call in reply.message.function_calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _FINISH[reply.finish]}
        return {
            "id": f"chatcmpl-{reply.id}",
            "object": "chat.completion",
            "created": parsed.context.created_s,
            "model": parsed.call.options.model,
            "choices": [choice],
            "usage": _usage(reply),
        }

    def stream(self, parsed: ParsedCall[ModelCall], body: Json) -> Iterator[bytes]:
        """Yields the chunks of a chat completion."""
        choice = body["choices"][0]
        head = {"id": body["id"], "object": "chat.completion.chunk", "created": body["created"], "model": body["model"]}
        has_usage = fields.includes_usage(parsed.body)
        if has_usage:
            head["usage"] = None
        for delta, finish in _deltas(choice["message"], choice["finish_reason"]):
            yield event({**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]})
        if has_usage:
            yield event({**head, "choices": [], "usage": body["usage"]})
        yield b"data: [DONE]\n\n"

    def error(self, problem: CallRefused, status: int) -> Json:
        """Returns the body of an error."""
        return openai_error(problem, status)

    def stream_error(self, problem: CallRefused, status: int) -> bytes:
        """Returns an event that the SDKs raise as an error."""
        return event(openai_error(problem, status))


def refuse_several(body: Json) -> None:
    """Raises: InvalidCall when a request asks for more than one reply."""
    if (fields.count(body, "n") or 1) > 1 or (fields.count(body, "best_of") or 1) > 1:
        raise InvalidCall(
            "cannot return several replies to one request: a reply is one turn of a trajectory; send one request for"
            " each reply",
            code="agent.several_replies",
        )


def _messages(body: Json, known: ParsedMessages) -> tuple[AgentMessage, ...]:
    repeated = known.repeated(body.get("messages"))
    added = islice(fields.objects(body, "messages"), len(repeated), None)
    messages = (*repeated, *(_message(message, where) for where, message in added))
    if not messages:
        raise InvalidCall("cannot answer the request: it has no messages; send at least one", code="agent.no_messages")
    return messages


def _message(message: Json, where: str) -> AgentMessage:
    name = fields.text(message, "role")
    role = _ROLES.get(name)
    if role is None:
        raise InvalidCall(
            f"cannot use {where}: its role {name[:40]!r} is not supported; use one of {', '.join(_ROLES)}",
            code="agent.unsupported_role",
        )
    is_assistant = role is Role.ASSISTANT
    reasoning = message.get("reasoning_content", message.get("reasoning")) if is_assistant else None
    if not isinstance(reasoning, str | None):
        raise InvalidCall(
            f"cannot use {where}: `reasoning_content` is not a string; send a string or leave it out",
            code="agent.invalid_field",
        )
    content = message.get("content")
    if not isinstance(content, str):
        kinds = ("text", "refusal") if is_assistant else ("text",)
        separator = "" if is_assistant else "\n"
        content = fields.joined_text(content, f"{where}.content", kinds=kinds, separator=separator)
    return AgentMessage(
        role=role,
        content=content,
        reasoning=reasoning,
        function_calls=_function_calls(message, where) if is_assistant else (),
        call_id=fields.required_text(message, "tool_call_id") if role is Role.TOOL else "",
    )


def _function_calls(message: Json, where: str) -> tuple[FunctionCall, ...]:
    if message.get("function_call"):
        raise InvalidCall(
            f"cannot use {where}: `function_call` is not supported; use `tool_calls`", code="agent.unsupported_field"
        )
    calls = []
    for _, call in fields.objects(message, "tool_calls"):
        function = fields.mapping(call, "function")
        if function is None or fields.text(call, "type", default="function") != "function":
            raise InvalidCall(
                f"cannot use {where}: it has a tool call that is not of type 'function'; use functions",
                code="agent.unsupported_tool",
            )
        calls.append(
            FunctionCall(
                id=fields.required_text(call, "id"),
                name=fields.required_text(function, "name"),
                arguments=fields.text(function, "arguments"),
            )
        )
    return tuple(calls)


def _tool_choice(choice: Any, tools: tuple[ToolSchema, ...]) -> str:
    return fields.tool_choice(choice, lambda named: fields.mapping(named, "function"), tools)


def _json_schema(body: Json) -> str:
    wanted = fields.mapping(body, "response_format") or {}
    return fields.format_schema(wanted, fields.mapping(wanted, "json_schema") or {}, "response_format")


def _tool_call(call: FunctionCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(reply: ModelReply) -> Json:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }


def _deltas(message: Json, finish: str) -> Iterator[tuple[Json, str | None]]:
    yield {"role": "assistant", "content": ""}, None
    if reasoning := message.get("reasoning_content"):
        yield {"reasoning_content": reasoning}, None
    if content := message["content"]:
        yield {"content": content}, None
    for index, call in enumerate(message.get("tool_calls", ())):
        yield {"tool_calls": [{"index": index, **call}]}, None
    yield {}, finish
