"""Model behind any endpoint for chat completions with tools, such as vLLM or SGLang."""

import codecs
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal
from uuid import uuid4

import httpx2
from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.values import Json
from astraflow.runtime.config.base import Config
from maintainer.agent.llm.interface import (
    Failure,
    Message,
    ModelFailed,
    PartialReply,
    Prices,
    Reply,
    Request,
    TextPart,
    ToolCall,
    ToolReply,
    Usage,
    models,
)

_FAILURES = {
    401: Failure.AUTH,
    403: Failure.AUTH,
    408: Failure.TIMEOUT,
    429: Failure.RATE_LIMITED,
    503: Failure.OVERLOADED,
    504: Failure.TIMEOUT,
    529: Failure.OVERLOADED,
}
_ENDINGS = {
    **dict.fromkeys(("length", "max_tokens", "max_length", "model_length", "max_output_tokens"), Failure.CUT),
    **dict.fromkeys(
        ("content_filter", "content_filtered", "safety", "refusal", "blocklist", "prohibited_content", "recitation"),
        Failure.REFUSED,
    ),
    **dict.fromkeys(("", "abort", "aborted", "cancelled", "error", "insufficient_system_resource"), Failure.DROPPED),
}
"""Failures by `finish_reason`, as several servers name them. Every other one ends a complete answer."""

_PROBLEMS = {
    Failure.CUT: "the answer was cut off at the token limit",
    Failure.DROPPED: "the answer stopped before its end",
    Failure.REFUSED: "the model refused",
}

CHARACTERS_PER_TOKEN = 3
"""Estimate for servers that count no tokens. A budget is better overestimated than exceeded."""

MAX_BYTES = 4 * 1024 * 1024
"""Maximum size of an answer."""


class ChatCompletionsOptions(Config):
    """Options of a model behind a chat completions endpoint."""

    model: str
    """Name of the model at the endpoint."""
    base_url: str
    """URL of the API, such as `http://127.0.0.1:8000/v1`."""
    key_variable: str = ""
    """Environment variable with the API key; empty if none is needed."""
    prices: Prices = Prices(input=0.0, output=0.0)
    """US dollars per million tokens; 0 for your own machine."""
    strict: bool = True
    """Requests strict tools; set false for endpoints that do not know the field."""
    single_calls: bool = True
    """Requests one call at a time (`parallel_tool_calls`); set false for endpoints that refuse the field. Several
    changes in one turn are answered with errors in any case."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Field for the maximum number of output tokens."""
    connect_s: float = Field(default=10.0, gt=0)
    """Timeout to connect, seconds; the answer has the rest of the wake's time."""


@models.register("chat_completions", options=ChatCompletionsOptions)
class ChatCompletions:
    """Client of one model of an endpoint for chat completions."""

    is_simulated = False

    def __init__(self, options: ChatCompletionsOptions, *, http_client: httpx2.AsyncClient | None = None) -> None:
        """http_client: for tests. Raises: InvalidInput for a missing key or an invalid URL."""
        key = os.environ.get(options.key_variable, "") if options.key_variable else ""
        if options.key_variable and not key:
            raise InvalidInput(
                f"cannot use the model {options.model!r}: it needs a key; set the variable {options.key_variable}",
                code="model.key_missing",
            )
        if not options.base_url.startswith(("http://", "https://")):
            raise InvalidInput(
                f"cannot use the model {options.model!r}: base_url is invalid; give a URL such as http://127.0.0.1:8000/v1",
                code="model.invalid_base_url",
            )
        self.model = options.model
        self._options = options
        self._client = http_client or httpx2.AsyncClient(follow_redirects=False)
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    async def reply(self, request: Request) -> Reply:
        """Requests one turn. Raises: ModelFailed."""
        sent = self._send(request)
        try:
            async with self._client.stream(
                "POST",
                f"{self._options.base_url.rstrip('/')}/chat/completions",
                json=sent,
                headers=self._headers,
                timeout=httpx2.Timeout(request.timeout_s, connect=min(self._options.connect_s, request.timeout_s)),
            ) as response:
                if response.status_code != 200:
                    raise _failure_of_status(response)
                content = await _read_body(response, request.partial_reply)
        except httpx2.TimeoutException:
            raise ModelFailed(Failure.TIMEOUT, "the model's endpoint did not answer in time") from None
        except (httpx2.RemoteProtocolError, httpx2.ReadError):
            raise ModelFailed(Failure.DROPPED, "the connection closed during the answer") from None
        except httpx2.HTTPError as problem:
            reason = f"the model's endpoint is unreachable: {type(problem).__name__}"
            raise ModelFailed(Failure.CONNECTION, reason) from None
        reply = self._read(content, request.partial_reply)
        if reply.usage.total:
            return reply
        tokens = (len(json.dumps(sent)) // CHARACTERS_PER_TOKEN, len(content) // CHARACTERS_PER_TOKEN)
        return replace(reply, usage=Usage(input=tokens[0], output=tokens[1]))  # the server counts none

    def usd(self, usage: Usage) -> float:
        """Cost in US dollars."""
        return self._options.prices.usd(usage)

    async def close(self) -> None:
        """Closes connections."""
        await self._client.aclose()

    def _send(self, request: Request) -> dict[str, Any]:
        strict = {"strict": True} if self._options.strict else {}
        tools = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.schema),
                    **strict,
                },
            }
            for tool in request.tools
        ]
        messages = [{"role": "system", "content": request.system}] if request.system else []
        for message in request.messages:
            messages += _messages(message)
        return {
            "model": self.model,
            "messages": messages,
            self._options.max_tokens_field: request.max_tokens,
            **({"tools": tools, "tool_choice": "auto"} if tools else {}),
            **({"parallel_tool_calls": False} if tools and self._options.single_calls else {}),
        }

    def _read(self, content: bytes, partial_reply: PartialReply) -> Reply:
        """Parses the answer. Raises: ModelFailed if it is invalid."""
        try:
            completion = json.loads(content)
            choice = completion["choices"][0]
            message, ending = choice["message"], _ending(choice.get("finish_reason"))
            usage = _usage(completion)
            calls = _calls(message)
            text, refusal = _text(message.get("content")), _refusal(message)
            partial_reply.finish(
                "".join((_text(message.get("reasoning_content")), text, _text(refusal), *_arguments(message)))
            )
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError):
            raise ModelFailed(Failure.GARBAGE, "the answer is not a chat completion") from None
        partial_reply.usage = usage
        failure = Failure.REFUSED if refusal else _ENDINGS.get(ending)
        if failure is not None:
            problem = ModelFailed(failure, _PROBLEMS[failure])
            problem.usage = usage
            raise problem
        text_parts = (TextPart(text=text),) if text else ()
        return Reply(
            parts=(*text_parts, *calls),
            usage=usage or Usage(),
            model=str(completion.get("model") or self.model)[:200],
        )


async def _read_body(response: httpx2.Response, partial_reply: PartialReply) -> bytes:
    """Reads an answer; the text so far is stored as it arrives. Raises: ModelFailed if it is too large."""
    content, decoder = bytearray(), codecs.getincrementaldecoder("utf-8")(errors="replace")
    async for piece in response.aiter_bytes():
        content += piece
        partial_reply.add(decoder.decode(piece))
        if len(content) > MAX_BYTES:
            raise ModelFailed(Failure.GARBAGE, f"the answer has more than {MAX_BYTES} bytes")
    return bytes(content)


def _messages(message: Message) -> list[dict[str, Any]]:
    """Messages in the format of the API, in which tool replies are separate messages."""
    replies = [
        {"role": "tool", "tool_call_id": part.call, "content": part.content}
        for part in message.parts
        if isinstance(part, ToolReply)
    ]
    text = "\n".join(part.text for part in message.parts if isinstance(part, TextPart))
    calls = [
        {
            "id": part.id,
            "type": "function",
            "function": {"name": part.name, "arguments": json.dumps(dict(part.arguments or {}))},
        }
        for part in message.parts
        if isinstance(part, ToolCall)
    ]
    converted: dict[str, Any] = {"role": message.role, "content": text or None} | (
        {"tool_calls": calls} if calls else {}
    )
    return [*replies, *([converted] if text or calls else [])]


def _functions(message: Mapping[str, Any]) -> list[tuple[object, Mapping[str, Any]]]:
    """Returns id and function of each call: of `tool_calls`, or of the older `function_call`."""
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise TypeError("the calls are not a list")
    function = message.get("function_call")
    older = [(None, function)] if function and not calls else []
    return [(call.get("id"), call.get("function") or call) for call in calls] + older


def _calls(message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    """Returns the calls. Each has an id of its own, also where the server sends none, or one for all."""
    calls: dict[str, ToolCall] = {}
    for identifier, function in _functions(message):
        name = function["name"]
        if not isinstance(name, str) or not name:
            raise ValueError("a call has no name")
        is_usable = isinstance(identifier, str | int) and str(identifier) not in ("", *calls)
        call_id = str(identifier) if is_usable else f"call_{uuid4().hex}"
        calls[call_id] = ToolCall(id=call_id, name=name, arguments=_parsed(function.get("arguments")))
    return tuple(calls.values())


def _parsed(arguments: object) -> Mapping[str, Json] | None:
    """Returns arguments, sent as JSON text, as text of that text, or as an object; None if they are none of these."""
    try:
        for _ in range(2):
            arguments = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        arguments = {} if arguments is None else arguments
        json.dumps(arguments, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _text(content: object) -> str:
    """Returns the text of a field: a string, or a list of parts, of which those of other kinds are left out."""
    texts = [
        part.get("text") if isinstance(part, dict) and part.get("type", "text") in ("text", "output_text") else part
        for part in _parts(content)
    ]
    return "".join(text for text in texts if isinstance(text, str))


def _refusal(message: Mapping[str, Any]) -> object:
    """Returns the refusal of the message, or of a part of its content; a false value without one."""
    parts = [part for part in _parts(message.get("content")) if isinstance(part, dict)]
    return message.get("refusal") or next((part["refusal"] for part in parts if part.get("refusal")), "")


def _parts(content: object) -> list[Any]:
    return content if isinstance(content, list) else [content]


def _arguments(message: Mapping[str, Any]) -> list[str]:
    arguments = [function.get("arguments") for _, function in _functions(message)]
    return [value if isinstance(value, str) else json.dumps(value) for value in arguments if value]


def _ending(reason: object) -> str:
    """Returns `finish_reason` in lower case; some servers send an object with its type."""
    value = reason.get("type") if isinstance(reason, dict) else reason
    return str(value or "").lower()


def _usage(completion: Mapping[str, Any]) -> Usage | None:
    """Usage of the API; its prompt tokens include cached ones. None where the server counts none."""
    usage = completion.get("usage") or {}
    cached = _count((usage.get("prompt_tokens_details") or {}).get("cached_tokens"))
    prompt, output = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if not prompt and not output:
        return None
    return Usage(input=max(0, prompt - cached), output=output, cache_read=min(cached, prompt))


def _count(value: object) -> int:
    """Returns a count, which some servers send as text or with a decimal point. Raises: ValueError, TypeError."""
    count = int(float(value or 0))  # type: ignore[arg-type]  # raises TypeError for other types
    if count < 0:
        raise ValueError("a count is negative")
    return count


def _failure_of_status(response: httpx2.Response) -> ModelFailed:
    failure = _FAILURES.get(response.status_code, Failure.SERVER if response.status_code >= 500 else Failure.INVALID)
    try:
        after_s = min(max(float(response.headers.get("retry-after", "")), 0.0), 3600.0)
    except ValueError:
        after_s = None
    return ModelFailed(failure, f"the model's endpoint answered {response.status_code}", retry_after_s=after_s)
