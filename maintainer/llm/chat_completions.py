"""Models behind any endpoint that speaks chat completions with tools: one of your own, as vLLM or SGLang serve them."""

import codecs
import json
import os
from typing import Any, Literal

import httpx2
from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config import Config
from maintainer.llm.base import Failure, Heard, Message, ModelFailed, Reply, Request, Said, ToolCall, ToolReply, Usage
from maintainer.llm.models import Prices, models

_FAILURES = {
    401: Failure.AUTH,
    403: Failure.AUTH,
    408: Failure.TIMEOUT,
    429: Failure.RATE_LIMITED,
    503: Failure.OVERLOADED,
    504: Failure.TIMEOUT,
    529: Failure.OVERLOADED,
}
MOST_BYTES = 4 * 1024 * 1024
"""Of an answer."""


class ChatCompletionsOptions(Config):
    """A model of one's own, or of anybody who serves it this way."""

    model: str
    """As the endpoint names it."""
    base_url: str
    """As in `http://127.0.0.1:8000/v1`."""
    key_variable: str = ""
    """Environment variable with a key, where one is wanted."""
    prices: Prices = Prices(input=0.0, output=0.0)
    """US dollars for a million tokens; nothing for a machine of one's own."""
    strict: bool = True
    """Whether to ask for strict tools; some endpoints do not know the word."""
    single_calls: bool = True
    """Whether to ask for one call at a time (`parallel_tool_calls`); some endpoints refuse the word. Changes are made
    one at a time in any case: several in a turn are answered with errors."""
    tokens_word: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the endpoint calls the most tokens of an answer."""
    connect_s: float = Field(default=10.0, gt=0)
    """To reach it; the rest of the time is the wake's."""


@models.register("chat_completions", options=ChatCompletionsOptions)
class ChatCompletions:
    """One model."""

    is_simulated = False

    def __init__(self, options: ChatCompletionsOptions, *, http_client: httpx2.AsyncClient | None = None) -> None:
        """http_client: for tests. Raises: InvalidInput for a key that is named and not there, or for no address."""
        key = os.environ.get(options.key_variable, "") if options.key_variable else ""
        if options.key_variable and not key:
            raise InvalidInput(
                f"the model {options.model} needs a key: set the environment variable {options.key_variable}"
            )
        if not options.base_url.startswith(("http://", "https://")):
            raise InvalidInput("base_url is where the endpoint is, as in http://127.0.0.1:8000/v1")
        self.model = options.model
        self._options = options
        self._client = http_client or httpx2.AsyncClient(follow_redirects=False)
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    async def reply(self, request: Request) -> Reply:
        """One turn. Raises: ModelFailed."""
        try:
            async with self._client.stream(
                "POST",
                f"{self._options.base_url.rstrip('/')}/chat/completions",
                json=self._asked(request),
                headers=self._headers,
                timeout=httpx2.Timeout(request.timeout_s, connect=min(self._options.connect_s, request.timeout_s)),
            ) as response:
                if response.status_code != 200:
                    raise _of_status(response)
                content = await _listened(response, request.heard)
        except httpx2.TimeoutException:
            raise ModelFailed(Failure.TIMEOUT, "the model's endpoint did not answer in time") from None
        except (httpx2.RemoteProtocolError, httpx2.ReadError):
            raise ModelFailed(Failure.DROPPED, "the answer broke off") from None
        except httpx2.HTTPError as problem:
            reason = f"the model's endpoint cannot be reached: {type(problem).__name__}"
            raise ModelFailed(Failure.CONNECTION, reason) from None
        return self._read(content, request.heard)

    def usd(self, usage: Usage) -> float:
        """What that cost."""
        return self._options.prices.usd(usage)

    async def close(self) -> None:
        """Let connections go."""
        await self._client.aclose()

    def _asked(self, request: Request) -> dict[str, Any]:
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
            self._options.tokens_word: request.max_tokens,
            **({"parallel_tool_calls": False} if self._options.single_calls else {}),
        }

    def _read(self, content: bytes, heard: Heard) -> Reply:
        """Raises: ModelFailed for what is no answer."""
        try:
            said = json.loads(content)
            choice = said["choices"][0]
            message, ending = choice["message"], choice.get("finish_reason")
            usage = heard.usage = _usage(said.get("usage") or {})
            calls = tuple(_call(call) for call in message.get("tool_calls") or ())
            text = message.get("content") or ""
            heard.settle(_written(message))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            raise ModelFailed(Failure.GARBAGE, "the answer is no chat completion") from None
        failure = self._failure(message, ending)
        if failure is not None:
            failure.usage = usage
            raise failure
        said_text = (Said(text=text),) if isinstance(text, str) and text else ()
        return Reply(parts=(*said_text, *calls), usage=usage, model=str(said.get("model", self.model))[:200])

    def _failure(self, message: dict[str, Any], ending: str | None) -> ModelFailed | None:
        if message.get("refusal") or ending == "content_filter":
            return ModelFailed(Failure.REFUSED, "the model refuses")
        if ending == "length":
            return ModelFailed(Failure.CUT, "the answer was cut off")
        if ending is None:
            return ModelFailed(Failure.DROPPED, "the answer stopped before its end")
        return None


async def _listened(response: httpx2.Response, heard: Heard) -> bytes:
    """An answer, piece by piece: what came before it broke off is heard. Raises: ModelFailed for one without end."""
    content, decoder = bytearray(), codecs.getincrementaldecoder("utf-8")(errors="replace")
    async for piece in response.aiter_bytes():
        content += piece
        heard.add(decoder.decode(piece))
        if len(content) > MOST_BYTES:
            raise ModelFailed(Failure.GARBAGE, f"the answer has more than {MOST_BYTES} bytes")
    return bytes(content)


def _messages(message: Message) -> list[dict[str, Any]]:
    """Tool replies are messages of their own here."""
    replies = [
        {"role": "tool", "tool_call_id": part.call, "content": part.content}
        for part in message.parts
        if isinstance(part, ToolReply)
    ]
    text = "\n".join(part.text for part in message.parts if isinstance(part, Said))
    calls = [
        {
            "id": part.id,
            "type": "function",
            "function": {"name": part.name, "arguments": json.dumps(dict(part.arguments or {}))},
        }
        for part in message.parts
        if isinstance(part, ToolCall)
    ]
    own: dict[str, Any] = {"role": message.role, "content": text or None} | ({"tool_calls": calls} if calls else {})
    return [*replies, *([own] if text or calls else [])]


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


def _written(message: dict[str, Any]) -> str:
    """All that the model wrote, of whatever kind."""
    texts = [message.get(name) for name in ("reasoning_content", "content", "refusal")]
    arguments = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return "".join(text for text in (*texts, *arguments) if isinstance(text, str))


def _usage(said: dict[str, Any]) -> Usage:
    """Cached tokens are among the prompt's here."""
    cached = int((said.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    return Usage(
        input=max(0, int(said.get("prompt_tokens") or 0) - cached),
        output=int(said.get("completion_tokens") or 0),
        cache_read=cached,
    )


def _of_status(response: httpx2.Response) -> ModelFailed:
    failure = _FAILURES.get(response.status_code, Failure.SERVER if response.status_code >= 500 else Failure.INVALID)
    try:
        after_s = min(max(float(response.headers.get("retry-after", "")), 0.0), 3600.0)
    except ValueError:
        after_s = None
    return ModelFailed(failure, f"the model's endpoint answered {response.status_code}", retry_after_s=after_s)
