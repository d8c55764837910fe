"""Interface of a model: one turn of a conversation with tools. Adapters hold no state between turns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeAlias

from pydantic import Field

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.values import Json
from astraflow.runtime.config.base import Config
from astraflow.runtime.plugins import Registry

MAX_PARTIAL_CHARACTERS = 4000
"""Characters of an unusable answer that are stored."""


class Failure(Enum):
    """Kinds of failures of a turn. None of them leads to an action."""

    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    """The service was unreachable, or closed the connection before it answered."""
    DROPPED = "dropped"
    """The answer ended before it was complete."""
    REFUSED = "refused"
    """The model refused."""
    CUT = "cut"
    """The answer exceeded `max_tokens`."""
    GARBAGE = "garbage"
    """The answer is invalid: not JSON, wrong structure, or several answers in one."""
    AUTH = "auth"
    """The key is missing, wrong, or not valid for this model."""
    INVALID = "invalid"
    """The service refused the request as invalid."""
    SERVER = "server"
    """The service reported an internal error."""


class ModelFailed(AstraFlowError):
    """Turn without a usable answer."""

    def __init__(self, failure: Failure, message: str, *, retry_after_s: float | None = None) -> None:
        """message: contains no keys, no URLs with passwords and no text of the model."""
        super().__init__(message, code=f"model.{failure.value}")
        self.failure = failure
        self.retry_after_s = retry_after_s
        """Retry delay that the service requested, seconds."""
        self.usage: Usage | None = None
        """Usage of the failed turn; None if unknown."""
        self.is_estimated = False
        """True if the usage is an estimate because the service did not report it."""
        self.said = ""
        """Partial answer, cut to a few thousand characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """Text of a message."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """Tool call that the model requested."""

    id: str
    name: str
    arguments: Mapping[str, Json] | None
    """None if they were not a JSON object: such a call is answered with an error and not executed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReply:
    """Result of a tool call."""

    call: str
    """Id of the call."""
    content: str
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpaqueBlock:
    """Block that only the service interprets (such as thinking) and expects back unchanged."""

    block: Mapping[str, Any]


Part: TypeAlias = TextPart | ToolCall | ToolReply | OpaqueBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Message of the user or of the model. role: `user` (the prompt, tool replies) or `assistant`."""

    role: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """Tool as it is described to a model."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """Strict JSON schema."""


@dataclass(slots=True)
class PartialReply:
    """Answer received so far. An adapter updates it while it streams, as the turn may be interrupted."""

    usage: "Usage | None" = None
    """Usage reported so far; None before the first report."""
    text: str = ""
    """Text of any kind, cut to `MAX_PARTIAL_CHARACTERS` characters: data only, not an answer."""
    characters: int = 0
    """Characters received. Count."""

    def add(self, text: str) -> None:
        """Appends streamed text."""
        self.characters += len(text)
        self.text += text[: max(0, MAX_PARTIAL_CHARACTERS - len(self.text))]

    def finish(self, text: str) -> None:
        """Replaces the streamed bytes with the model's text once the answer is complete."""
        self.characters, self.text = len(text), text[:MAX_PARTIAL_CHARACTERS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Conversation so far. `system` and `tools` are equal in every wake, so that they are cached."""

    system: str
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]
    max_tokens: int
    """Maximum output tokens."""
    timeout_s: float
    partial_reply: PartialReply = field(default_factory=PartialReply, compare=False)
    """Receives the answer as it streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens as the service counts them; a simulated model counts a quarter of the characters."""

    input: int = 0
    """Tokens neither read from a cache nor written to one."""
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    @property
    def total(self) -> int:
        """All tokens, cached or not; counted by budgets."""
        return self.input + self.output + self.cache_read + self.cache_write

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Complete turn of the model."""

    parts: tuple[Part, ...]
    usage: Usage
    model: str
    """Name of the model in the answer."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Requested tool calls, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def text(self) -> str:
        """Text of the turn."""
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart)).strip()


class Llm(Protocol):
    """Model with tools."""

    model: str
    is_simulated: bool
    """True for a simulated model; reports and pages show it."""

    async def reply(self, request: Request) -> Reply:
        """Requests one turn. Raises: only ModelFailed."""

    def usd(self, usage: Usage) -> float:
        """Cost in US dollars."""

    async def close(self) -> None:
        """Closes connections."""


class Prices(Config):
    """US dollars per million tokens. Prices depend on your contract, so there are no defaults."""

    input: float = Field(ge=0)
    """Uncached input tokens."""
    output: float = Field(ge=0)
    """Output tokens."""
    cache_read: float | None = Field(default=None, ge=0)
    """Input tokens read from the service's cache; None: a tenth of `input`."""
    cache_write: float | None = Field(default=None, ge=0)
    """Input tokens written to the cache; None: 1.25 times `input`."""

    def usd(self, usage: Usage) -> float:
        """Cost in US dollars.

        >>> Prices(input=4.0, output=20.0).usd(Usage(input=500_000, output=100_000, cache_read=1_000_000))
        4.4
        """
        read_price = self.input / 10 if self.cache_read is None else self.cache_read
        write_price = self.input * 1.25 if self.cache_write is None else self.cache_write
        uncached_cost = usage.input * self.input + usage.output * self.output
        return (uncached_cost + usage.cache_read * read_price + usage.cache_write * write_price) / 1e6


models: Registry[Llm] = Registry(
    "model",
    {
        "messages_api": "maintainer.agent.llm.messages_api",
        "chat_completions": "maintainer.agent.llm.chat_completions",
        "scripted": "maintainer.agent.llm.scripted",
        "tactics": "maintainer.agent.llm.tactics",
    },
    heavy=("messages_api",),
    extra="llm",
)
