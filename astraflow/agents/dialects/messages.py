"""Dialect of `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from collections.abc import Iterator, Sequence
from itertools import groupby
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
from astraflow.agents.dialects.dialect import CallContext, InvalidCall, Json, ParsedCall, event, json_value, to_json
from astraflow.models.tokenizers import ToolSchema

_FINISH = {
    ReplyFinish.STOP: "end_turn",
    ReplyFinish.LENGTH: "max_tokens",
    ReplyFinish.FUNCTION_CALLS: "tool_use",
}
_ERRORS = {
    401: "authentication_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
}
_THREADS = "agent.threads_not_supported"
_SIGNATURE = "unsigned"
"""Signature of thinking blocks. Not empty, because clients turn thoughts without a signature into text."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class MessagesDialect:
    """Anthropic's messages, with thoughts as thinking blocks."""

    name = "messages"

    def parse(self, body: Json, context: CallContext) -> ParsedCall[ModelCall]:
        """Returns the request. Raises: CallRefused."""
        _refuse_thread(body)
        fields.refuse_fields(body, {"container": "leave it out", "mcp_servers": "define the tools in the agent"})
        tools = tuple(
            fields.function_tool(tool, tool, where, kind="custom", schema_key="input_schema")
            for where, tool in fields.objects(body, "tools")
        )
        choice = fields.mapping(body, "tool_choice") or {}
        options = CallOptions(
            model=fields.text(body, "model"),
            max_tokens=fields.count(body, "max_tokens"),
            temperature=fields.number(body, "temperature", most=100.0),
            top_p=fields.number(body, "top_p", most=1.0),
            stop=fields.strings(body, "stop_sequences"),
            json_schema=_json_schema(body),
            retry_key=context.retry_key,
            is_retry=context.is_retry,
        )
        call = ModelCall(
            options=options,
            messages=tuple(_messages(body)),
            tools=tools,
            tool_choice=_tool_choice(choice, tools),
            allows_parallel_calls=not fields.flag(choice, "disable_parallel_tool_use"),
        )
        return ParsedCall(call=call, body=body, context=context, is_streaming=fields.flag(body, "stream"))

    def reply(self, parsed: ParsedCall[ModelCall], reply: ModelReply) -> Json:
        return {
            "id": f"msg_{reply.id}",
            "type": "message",
            "role": "assistant",
            "model": parsed.call.options.model,
            "content": list(_blocks(reply.message)),
            "stop_reason": _FINISH[reply.finish],
            "stop_sequence": None,
            "usage": {
                "input_tokens": reply.prompt_tokens - reply.cached_tokens,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": reply.cached_tokens,
                "output_tokens": reply.completion_tokens,
            },
        }

    def stream(self, parsed: ParsedCall[ModelCall], body: Json) -> Iterator[bytes]:
        """Yields the events of a message."""
        yield _event("message_start", message={**body, "content": [], "stop_reason": None})
        for index, block in enumerate(body["content"]):
            empty, deltas = _start_and_deltas(block)
            yield _event("content_block_start", index=index, content_block=empty)
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        ending = {"stop_reason": body["stop_reason"], "stop_sequence": None}
        yield _event("message_delta", delta=ending, usage=body["usage"])
        yield _event("message_stop")

    def count(self, tokens: int) -> Json:
        """Returns the body of the answer to a request for the number of tokens."""
        return {"input_tokens": tokens}

    def error(self, problem: CallRefused, status: int) -> Json:
        """Returns the body of an error."""
        details: Json = {"error_code": problem.code}
        if problem.code == _THREADS:  # the SDK's own code: its tool runner then continues without a thread
            details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        kind, message = _ERRORS.get(status, "invalid_request_error"), str(problem)
        if problem.context is not None:
            used, limit = problem.context.tokens, problem.context.limit
            message = f"prompt is too long: {used} tokens > {limit} maximum. {message}"
        return {"type": "error", "error": {"type": kind, "message": message, "details": details}}

    def stream_error(self, problem: CallRefused, status: int) -> bytes:
        """Returns an event that the SDK raises as an error."""
        return event(self.error(problem, status), name="error")


def _refuse_thread(body: Json) -> None:
    if body.get("thread"):
        raise InvalidCall(
            "cannot use the field 'thread': conversations are not held for this API; send all messages with each "
            "request",
            code="agent.threads_not_supported",
        )


def _messages(body: Json) -> Iterator[AgentMessage]:
    system = fields.joined_text(body.get("system"), "system", kinds=("text",), separator="\n")
    if system:
        yield AgentMessage(role=Role.SYSTEM, content=system)
    role = ""
    for role, neighbours in groupby(fields.objects(body, "messages"), key=lambda pair: fields.text(pair[1], "role")):
        turn = list(neighbours)
        if role == "assistant":
            yield _assistant_message(turn)
        elif role == "user":
            yield from _user_messages(turn)
        elif role == "system":
            for where, message in turn:
                content = fields.joined_text(message.get("content"), where, kinds=("text",), separator="\n")
                yield AgentMessage(role=Role.SYSTEM, content=content)
        else:
            raise InvalidCall(
                f"cannot use {turn[0][0]}: its role {role[:40]!r} is not supported; use user, assistant or system",
                code="agent.unsupported_role",
            )
    if not role:
        raise InvalidCall("cannot answer the request: it has no messages; send at least one", code="agent.no_messages")
    if role == "assistant":
        raise InvalidCall(
            "cannot answer the request: its last message is the assistant's, and continuing a message is not supported;"
            " end with a message of the user",
            code="agent.prefill_not_supported",
        )


_Turn = Sequence[tuple[str, Json]]
"""Neighbours of one role, with their names. The API counts them as one message."""


def _content_blocks(turn: _Turn) -> Iterator[tuple[str, Json]]:
    """Yields name and value of each block; a string counts as one block of text."""
    for where, message in turn:
        if isinstance(message.get("content"), str):
            yield f"{where}.content", {"type": "text", "text": message["content"]}
        else:
            yield from ((f"{where}.{name}", block) for name, block in fields.objects(message, "content"))


def _assistant_message(turn: _Turn) -> AgentMessage:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[FunctionCall] = []
    for name, block in _content_blocks(turn):
        match block.get("type"):
            case "text":
                texts.append(fields.text(block, "text"))
            case "thinking":
                thoughts.append(fields.text(block, "thinking"))
            case "redacted_thinking":
                continue  # opaque: counts as left out
            case "tool_use":
                arguments = to_json(fields.mapping(block, "input") or {}).decode()
                called, identity = fields.required_text(block, "name"), fields.required_text(block, "id")
                calls.append(FunctionCall(id=identity, name=called, arguments=arguments))
            case kind:
                raise _unsupported(name, kind)
    return AgentMessage(
        role=Role.ASSISTANT,
        content="".join(texts),
        reasoning="".join(thoughts) if thoughts else None,
        function_calls=tuple(calls),
    )


def _user_messages(turn: _Turn) -> Iterator[AgentMessage]:
    """Yields the results of function calls as messages of their own, and the texts between them."""
    texts: list[str] = []
    is_empty = True
    for name, block in _content_blocks(turn):
        is_empty = False
        match block.get("type"):
            case "text":
                texts.append(fields.text(block, "text"))
            case "tool_result":
                if texts:
                    yield AgentMessage(role=Role.USER, content="\n".join(texts))
                    texts = []
                yield AgentMessage(
                    role=Role.TOOL,
                    content=fields.joined_text(block.get("content"), name, kinds=("text",), separator="\n"),
                    call_id=fields.required_text(block, "tool_use_id"),
                )
            case kind:
                raise _unsupported(name, kind)
    if texts or is_empty:
        yield AgentMessage(role=Role.USER, content="\n".join(texts))


def _unsupported(where: str, kind: Any) -> InvalidCall:
    return InvalidCall(
        f"cannot use {where}: blocks of type {str(kind)[:40]!r} are not supported; send text",
        code="agent.unsupported_content",
    )


def _tool_choice(choice: Json, tools: tuple[ToolSchema, ...]) -> str:
    kind = fields.text(choice, "type", default="auto")
    if kind == "tool":
        return fields.known_tool(fields.required_text(choice, "name"), tools)
    if kind not in _CHOICES:
        raise InvalidCall(
            f"cannot use `tool_choice`: type {kind[:40]!r} is not supported; use auto, any, tool or none",
            code="agent.unsupported_tool_choice",
        )
    return _CHOICES[kind]


def _json_schema(body: Json) -> str:
    wanted = fields.mapping(fields.mapping(body, "output_config") or {}, "format") or {}
    schema = fields.mapping(wanted, "schema")
    if wanted and (wanted.get("type") != "json_schema" or schema is None):
        raise InvalidCall(
            "cannot use `output_config.format`: its type is unknown or it has no schema; use 'json_schema' with "
            "`schema`",
            code="agent.unsupported_format",
        )
    return fields.schema_text(schema)


def _blocks(message: AgentMessage) -> Iterator[Json]:
    if message.reasoning is not None:
        yield {"type": "thinking", "thinking": message.reasoning, "signature": _SIGNATURE}
    if message.content:
        yield {"type": "text", "text": message.content}
    for call in message.function_calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)}


def _input(arguments: str) -> object:
    """Returns the arguments as JSON; text that is not JSON stays text, so that the client sees what the model wrote."""
    try:
        return json_value(arguments.encode() or b"{}")
    except (UnicodeEncodeError, InvalidCall):
        return arguments


def _start_and_deltas(block: Json) -> tuple[Json, list[Json]]:
    """Returns a block as its stream starts, and the deltas that complete it."""
    match block["type"]:
        case "thinking":
            return {**block, "thinking": "", "signature": ""}, [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case _:
            written = to_json(block["input"]).decode()
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": written}]


def _event(kind: str, **values: Any) -> bytes:
    return event({"type": kind, **values}, name=kind)
