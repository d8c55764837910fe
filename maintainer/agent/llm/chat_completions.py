"""Model behind any endpoint for chat completions with tools, such as vLLM or SGLang."""

import codecs
import json
import os
from typing import Any, Literal

import httpx2
from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.base import Config
from maintainer.agent.llm.interface import (
    Failure,
    Message,
    ModelFailed,
    PartialReply,
    Reply,
    Request,
    TextPart,
    ToolCall,
    ToolReply,
    Usage,
)
from maintainer.agent.llm.models import Prices, models

_FAILURES = {
    401: Failure.AUTH,
    403: Failure.AUTH,
    408: Failure.TIMEOUT,
    429: Failure.RATE_LIMITED,
    503: Failure.OVERLOADED,
    504: Failure.TIMEOUT,
    529: Failure.OVERLOADED,
}
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
        try:
            async with self._client.stream(
                "POST",
                f"{self._options.base_url.rstrip('/')}/chat/completions",
                json=self._send(request),
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
        return self._read(content, request.partial_reply)

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
        messages = [{"role": "system", "content": request.system}]
        for message in request.messages:
            messages += _messages(message)
        return {
            "model": self.model,
            "messages": messages,
            "tools": tools,
            "tool_choice": "auto",
            self._options.max_tokens_field: request.max_tokens,
            **({"parallel_tool_calls": False} if self._options.single_calls else {}),
        }

    def _read(self, content: bytes, partial_reply: PartialReply) -> Reply:
        """Parses the answer. Raises: ModelFailed if it is invalid."""
        try:
            completion = json.loads(content)
            choice = completion["choices"][0]
            message, ending = choice["message"], choice.get("finish_reason")
            usage = partial_reply.usage = _usage(completion.get("usage") or {})
            calls = tuple(_call(call) for call in message.get("tool_calls") or ())
            text = message.get("content") or ""
            partial_reply.finish(_model_text(message))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            raise ModelFailed(Failure.GARBAGE, "the answer is not a chat completion") from None
        failure = self._failure(message, ending)
        if failure is not None:
            failure.usage = usage
            raise failure
        text_parts = (TextPart(text=text),) if isinstance(text, str) and text else ()
        return Reply(parts=(*text_parts, *calls), usage=usage, model=str(completion.get("model", self.model))[:200])

    def _failure(self, message: dict[str, Any], ending: str | None) -> ModelFailed | None:
        if message.get("refusal") or ending == "content_filter":
            return ModelFailed(Failure.REFUSED, "the model refused")
        if ending == "length":
            return ModelFailed(Failure.CUT, "the answer was cut off at the token limit")
        if ending is None:
            return ModelFailed(Failure.DROPPED, "the answer stopped before its end")
        return None


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


def _call(call: dict[str, Any]) -> ToolCall:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, TypeError, RecursionError):
        arguments = None
    return ToolCall(
        id=str(call["id"]),
        name=str(function["name"]),
        arguments=arguments if isinstance(arguments, dict) else None,
    )


def _model_text(message: dict[str, Any]) -> str:
    """All text of the model: reasoning, content, refusal and arguments."""
    texts = [message.get(name) for name in ("reasoning_content", "content", "refusal")]
    arguments = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return "".join(text for text in (*texts, *arguments) if isinstance(text, str))


def _usage(usage: dict[str, Any]) -> Usage:
    """Usage of the API; its prompt tokens include cached ones."""
    cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    return Usage(
        input=max(0, int(usage.get("prompt_tokens") or 0) - cached),
        output=int(usage.get("completion_tokens") or 0),
        cache_read=cached,
    )


def _failure_of_status(response: httpx2.Response) -> ModelFailed:
    failure = _FAILURES.get(response.status_code, Failure.SERVER if response.status_code >= 500 else Failure.INVALID)
    try:
        after_s = min(max(float(response.headers.get("retry-after", "")), 0.0), 3600.0)
    except ValueError:
        after_s = None
    return ModelFailed(failure, f"the model's endpoint answered {response.status_code}", retry_after_s=after_s)
