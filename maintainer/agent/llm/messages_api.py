"""Model behind the Messages API, through its SDK: streamed, with prompt caching and strict tools.

The SDK's retries are disabled: a failed turn is one failure, and the loop backs off. Its search for credentials on disk
is disabled too: the key comes only from the environment.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

import anthropic
import httpx2
from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.base import Config
from maintainer.agent.llm.interface import (
    Failure,
    Message,
    ModelFailed,
    OpaqueBlock,
    Part,
    Prices,
    Reply,
    Request,
    TextPart,
    ToolCall,
    ToolReply,
    Usage,
    models,
)

CACHE_BREAKPOINT: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
"""Marks the end of the part of the request that is equal in other turns and therefore cached."""

STATUS_OVERLOADED = 529
_FAILURES: Mapping[int, Failure] = {
    401: Failure.AUTH,
    402: Failure.AUTH,
    403: Failure.AUTH,
    404: Failure.INVALID,
    408: Failure.TIMEOUT,
    429: Failure.RATE_LIMITED,
    503: Failure.OVERLOADED,
    504: Failure.TIMEOUT,
    STATUS_OVERLOADED: Failure.OVERLOADED,
}
_TYPES: Mapping[str, Failure] = {
    "overloaded_error": Failure.OVERLOADED,
    "rate_limit_error": Failure.RATE_LIMITED,
    "timeout_error": Failure.TIMEOUT,
    "authentication_error": Failure.AUTH,
    "permission_error": Failure.AUTH,
    "api_error": Failure.SERVER,
}
"""Errors within a stream whose status was 200."""


class MessagesApiOptions(Config):
    """Options of a hosted model."""

    model: str
    """Name of the model at the service."""
    base_url: str = ""
    """Alternative URL of the service; empty for the default."""
    key_variable: str = "ANTHROPIC_API_KEY"
    """Environment variable with the API key."""
    prices: Prices
    """US dollars per million tokens, for the budgets."""
    connect_s: float = Field(default=10.0, gt=0)
    """Timeout to connect, seconds; the answer has the rest of the wake's time."""


@models.register("messages_api", options=MessagesApiOptions)
class MessagesApi:
    """Client of one model of the Messages API."""

    is_simulated = False

    def __init__(self, options: MessagesApiOptions, *, http_client: httpx2.AsyncClient | None = None) -> None:
        """http_client: for tests and proxies; None for the SDK's own. Raises: InvalidInput without a key."""
        key = os.environ.get(options.key_variable, "")
        if not key:
            raise InvalidInput(
                f"cannot use the model {options.model!r}: it needs a key; set the environment variable "
                f"{options.key_variable}, or use kind = 'scripted', which needs none",
                code="model.key_missing",
            )
        self.model = options.model
        self._options = options
        self._client: anthropic.AsyncAnthropic = anthropic.AsyncAnthropic(
            api_key=key,
            base_url=options.base_url or None,
            max_retries=0,
            http_client=http_client,
        )

    async def reply(self, request: Request) -> Reply:
        """Requests one turn, streamed. Raises: ModelFailed."""
        usage = Usage()
        try:
            async with self._client.messages.stream(**self._request_body(request)) as stream:
                async for event in stream:
                    if event.type in ("message_start", "message_delta"):
                        usage = request.partial_reply.usage = usage_of(stream.current_message_snapshot.usage)
                    elif event.type == "content_block_delta":
                        request.partial_reply.add(_model_text(event.delta))
                message = stream.current_message_snapshot
        except anthropic.APIStatusError as problem:
            raise _with(usage, _failure_of_status(problem)) from None
        except anthropic.APITimeoutError:
            raise _with(usage, ModelFailed(Failure.TIMEOUT, "the model's service did not answer in time")) from None
        except anthropic.APIConnectionError:
            raise _with(usage, ModelFailed(Failure.CONNECTION, "the model's service is unreachable")) from None
        except anthropic.AnthropicError as problem:
            raise _with(usage, ModelFailed(Failure.GARBAGE, f"no answer: {type(problem).__name__}")) from None
        except Exception as problem:  # broken streams raise errors of several libraries
            failure = Failure.DROPPED if _is_transport(problem) else Failure.GARBAGE
            raise _with(
                usage, ModelFailed(failure, f"the connection closed during the answer: {type(problem).__name__}")
            ) from None
        return self._complete(message, usage)

    def usd(self, usage: Usage) -> float:
        """Cost in US dollars."""
        return self._options.prices.usd(usage)

    async def close(self) -> None:
        """Closes connections."""
        await self._client.close()

    def _request_body(self, request: Request) -> dict[str, Any]:
        messages = [{"role": message.role, "content": _content(message)} for message in request.messages]
        messages[-1]["content"][-1] |= CACHE_BREAKPOINT  # type: ignore[index, operator]  # the last message is the user's
        return {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "system": [{"type": "text", "text": request.system, **CACHE_BREAKPOINT}],
            "tools": [
                {"name": tool.name, "description": tool.description, "input_schema": tool.schema, "strict": True}
                for tool in request.tools
            ],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "messages": messages,
            "timeout": httpx2.Timeout(request.timeout_s, connect=min(self._options.connect_s, request.timeout_s)),
        }

    def _complete(self, message: Any, usage: Usage) -> Reply:
        """Converts a complete message. Raises: ModelFailed for any other."""
        match message.stop_reason:
            case None:
                raise _with(usage, ModelFailed(Failure.DROPPED, "the answer stopped before its end"))
            case "max_tokens" | "model_context_window_exceeded":
                raise _with(usage, ModelFailed(Failure.CUT, f"the answer was cut off ({message.stop_reason})"))
            case "refusal":
                raise _with(usage, ModelFailed(Failure.REFUSED, "the model refused"))
            case "end_turn" | "tool_use" | "stop_sequence":
                return Reply(parts=tuple(_part(block) for block in message.content), usage=usage, model=message.model)
            case _:
                raise _with(usage, ModelFailed(Failure.GARBAGE, "the answer has an unknown stop reason"))


def _model_text(delta: Any) -> str:
    """Text of a streamed delta: answer, tool arguments or thinking."""
    for name in ("text", "partial_json", "thinking"):
        if isinstance(text := getattr(delta, name, None), str):
            return text
    return ""


def usage_of(usage: Any) -> Usage:
    """Converts the usage of the API."""
    return Usage(
        input=usage.input_tokens or 0,
        output=usage.output_tokens or 0,
        cache_read=usage.cache_read_input_tokens or 0,
        cache_write=usage.cache_creation_input_tokens or 0,
    )


def _content(message: Message) -> list[dict[str, Any]]:
    return [_block(part) for part in message.parts]


def _block(part: Part) -> dict[str, Any]:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ToolCall():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": dict(part.arguments or {})}
        case ToolReply():
            return {"type": "tool_result", "tool_use_id": part.call, "content": part.content, "is_error": part.is_error}
        case OpaqueBlock():
            return dict(part.block)


def _part(block: Any) -> Part:
    match block.type:
        case "text":
            return TextPart(text=block.text)
        case "tool_use":
            arguments = block.input if isinstance(block.input, dict) else None
            return ToolCall(id=block.id, name=block.name, arguments=arguments)
        case _:
            return OpaqueBlock(block=json.loads(block.model_dump_json(exclude_none=True)))


def _failure_of_status(problem: anthropic.APIStatusError) -> ModelFailed:
    failure = _TYPES.get(str(problem.type)) if problem.status_code == 200 else _FAILURES.get(problem.status_code)
    if failure is None:
        failure = Failure.SERVER if problem.status_code >= 500 or problem.status_code == 200 else Failure.INVALID
    message = f"the model's service answered {problem.status_code} ({problem.type or 'no type'})"
    return ModelFailed(failure, message, retry_after_s=_seconds(problem.response.headers.get("retry-after")))


def _seconds(text: str | None) -> float | None:
    try:
        return min(max(float(text or ""), 0.0), 3600.0)
    except ValueError:
        return None


def _with(usage: Usage, problem: ModelFailed) -> ModelFailed:
    problem.usage = usage
    return problem


def _is_transport(problem: Exception) -> bool:
    return isinstance(problem, httpx2.TransportError)
