"""Dialect of `POST /v1/responses` and `POST /v1/responses/input_tokens`."""

import base64
import binascii
from collections.abc import Iterator
from typing import Any

from astraflow.agents.calls import (
    AgentMessage,
    CallOptions,
    CallRefused,
    FunctionCall,
    ModelCall,
    ModelReply,
    Refusal,
    Role,
)
from astraflow.agents.dialects import fields
from astraflow.agents.dialects.dialect import CallContext, InvalidCall, Json, ParsedCall, event, openai_error
from astraflow.agents.dialects.response_output import (
    full_name,
    reply_items,
    reply_of_item,
    response_body,
    response_events,
)
from astraflow.models.tokenizers import ToolSchema

_ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER}
_UNSUPPORTED = {
    "background": "send the request without it and wait",
    "conversation": "use `previous_response_id`",
    "prompt": "send the messages as `input`",
    "top_logprobs": "leave it out: the run records log probabilities itself",
    "moderation": "leave it out",
}
_OFFERED = ("web_search", "web_search_preview")
"""Tools of OpenAI's servers that coding agents offer in every request. They are left out: the policy does not learn of
them, so it cannot call them."""
_LOGPROBS = "message.output_text.logprobs"


class ResponsesDialect:
    """OpenAI's responses, with thoughts as reasoning items. `store` is ignored: a session keeps its replies anyway."""

    name = "responses"

    def parse(self, body: Json, context: CallContext) -> ParsedCall[ModelCall]:
        """Returns the request. Raises: CallRefused."""
        fields.refuse_fields(body, _UNSUPPORTED)
        fields.mapping(body, "metadata")  # what the answer needs is checked before a reply is sampled and trained
        if _LOGPROBS in fields.strings(body, "include"):
            fields.refuse_fields({"include": _LOGPROBS}, {"include": "leave log probabilities out"})
        tools = tuple(_tools(body))
        options = CallOptions(
            model=fields.text(body, "model"),
            max_tokens=fields.count(body, "max_output_tokens"),
            temperature=fields.number(body, "temperature", most=100.0),
            top_p=fields.number(body, "top_p", most=1.0),
            json_schema=_json_schema(body),
            retry_key=context.retry_key,
            is_retry=context.is_retry,
        )
        call = ModelCall(
            options=options,
            messages=_messages(body, context),
            tools=tools,
            tool_choice=_tool_choice(body.get("tool_choice"), tools),
            allows_parallel_calls=fields.flag(body, "parallel_tool_calls", default=True),
        )
        return ParsedCall(call=call, body=body, context=context, is_streaming=fields.flag(body, "stream"))

    def reply(self, parsed: ParsedCall[ModelCall], reply: ModelReply) -> Json:
        return response_body(parsed, reply)

    def stream(self, parsed: ParsedCall[ModelCall], body: Json) -> Iterator[bytes]:
        return response_events(body)

    def count(self, tokens: int) -> Json:
        """Returns the body of the answer to a request for the number of tokens."""
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def error(self, problem: CallRefused, status: int) -> Json:
        """Returns the body of an error."""
        return openai_error(problem, status)

    def stream_error(self, problem: CallRefused, status: int) -> bytes:
        """Returns an event that the SDK raises as an error."""
        error = openai_error(problem, status)["error"]
        described = {**{name: error[name] for name in ("code", "message", "param")}, "sequence_number": 0}
        return event({"type": "error", "error": error, **described}, name="error")


def _messages(body: Json, context: CallContext) -> tuple[AgentMessage, ...]:
    messages: list[AgentMessage] = []
    if instructions := fields.text(body, "instructions"):
        messages.append(AgentMessage(role=Role.SYSTEM, content=instructions))
    if previous := fields.text(body, "previous_response_id"):
        messages += context.conversation(previous.removeprefix("resp_"))
    input_items = body.get("input")
    messages += (
        [AgentMessage(role=Role.USER, content=input_items)]
        if isinstance(input_items, str)
        else _input_messages(body, context)
    )
    if not messages:
        raise InvalidCall("cannot answer the request: it has no input; send at least one", code="agent.no_messages")
    return tuple(messages)


def _input_messages(body: Json, context: CallContext) -> Iterator[AgentMessage]:
    """Yields the messages of input items; items of one reply become one message."""
    reply = _FoldedReply()
    for where, sent in fields.objects(body, "input"):
        item = _referenced(sent, body, context) if sent.get("type") == "item_reference" else sent
        kind = fields.text(item, "type", default="message")
        role = fields.text(item, "role") if kind == "message" else ""
        if kind in ("reasoning", "function_call") or role == "assistant":
            if reply.is_complete_before(kind):
                yield reply.message()
                reply = _FoldedReply()
            reply.add(kind, item, where)
            continue
        if not reply.is_empty:
            yield reply.message()
            reply = _FoldedReply()
        yield _input_message(kind, role, item, where)
    if not reply.is_empty:
        yield reply.message()


def _referenced(reference: Json, body: Json, context: CallContext) -> Json:
    """Returns the item of an earlier reply of the session that a client sends by its id. Raises: CallRefused."""
    identity = fields.required_text(reference, "id")
    reply_id = reply_of_item(identity)
    items = reply_items(context.conversation(reply_id)[-1], reply_id, body)
    item = next((item for item in items if item["id"] == identity), None)
    if item is None:
        raise CallRefused(
            f"cannot use the item {identity[:80]!r}: its reply has no such item; send the item itself",
            refusal=Refusal.NOT_FOUND,
            code="agent.unknown_item",
        )
    return item


class _FoldedReply:
    """Items of one reply: thoughts first, then text, then function calls."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[FunctionCall] = []
        self.is_empty = True

    def is_complete_before(self, kind: str) -> bool:
        """Whether an item of this kind belongs to the next reply."""
        if kind == "reasoning":
            return not self.is_empty
        return kind == "message" and bool(self._texts or self._calls)

    def add(self, kind: str, item: Json, where: str) -> None:
        """Adds an item. Raises: InvalidCall."""
        self.is_empty = False
        if kind == "reasoning":
            if (thought := _thought(item)) is not None:
                self._thoughts.append(thought)
        elif kind == "function_call":
            name = full_name(fields.text(item, "namespace"), fields.required_text(item, "name"))
            arguments = fields.text(item, "arguments")
            self._calls.append(FunctionCall(id=fields.required_text(item, "call_id"), name=name, arguments=arguments))
        else:
            kinds = ("output_text", "text", "refusal")
            self._texts.append(fields.joined_text(item.get("content"), where, kinds=kinds, separator=""))

    def message(self) -> AgentMessage:
        return AgentMessage(
            role=Role.ASSISTANT,
            content="".join(self._texts),
            reasoning="".join(self._thoughts) if self._thoughts else None,
            function_calls=tuple(self._calls),
        )


def _thought(item: Json) -> str | None:
    """Returns the text of a reasoning item; None when the client leaves it out."""
    if parts := list(fields.objects(item, "content")):
        return "".join(fields.text(part, "text") for _, part in parts)
    if encrypted := fields.text(item, "encrypted_content"):
        try:
            return base64.b64decode(encrypted, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return None
    parts = list(fields.objects(item, "summary"))
    return "".join(fields.text(part, "text") for _, part in parts) if parts else None


def _input_message(kind: str, role: str, item: Json, where: str) -> AgentMessage:
    if kind == "function_call_output":
        output = fields.joined_text(item.get("output"), where, kinds=("input_text", "text"), separator="\n")
        return AgentMessage(role=Role.TOOL, content=output, call_id=fields.required_text(item, "call_id"))
    if kind != "message":
        raise InvalidCall(
            f"cannot use {where}: items of type {kind[:40]!r} are not supported; use messages, reasoning, function "
            "calls and their outputs",
            code="agent.unsupported_content",
        )
    if role not in _ROLES:
        raise InvalidCall(
            f"cannot use {where}: its role {role[:40]!r} is not supported; use system, developer, user or assistant",
            code="agent.unsupported_role",
        )
    content = fields.joined_text(item.get("content"), where, kinds=("input_text", "text"), separator="\n")
    return AgentMessage(role=_ROLES[role], content=content)


def _tools(body: Json) -> Iterator[ToolSchema]:
    for where, tool in fields.objects(body, "tools"):
        if tool.get("type") == "namespace":
            namespace = fields.required_text(tool, "name")
            for inner, function in fields.objects(tool, "tools"):
                yield _tool(function, f"{where}.{inner}", namespace=namespace)
        elif tool.get("type") not in _OFFERED:
            yield _tool(tool, where)


def _tool(tool: Json, where: str, *, namespace: str = "") -> ToolSchema:
    schema = fields.function_tool(tool, tool, where)
    schema["function"]["name"] = full_name(namespace, schema["function"]["name"])
    return schema


def _tool_choice(choice: Any, tools: tuple[ToolSchema, ...]) -> str:
    return fields.tool_choice(choice, lambda named: named if named.get("type") == "function" else None, tools)


def _json_schema(body: Json) -> str:
    wanted = fields.mapping(fields.mapping(body, "text") or {}, "format") or {}
    return fields.format_schema(wanted, wanted, "text.format")
