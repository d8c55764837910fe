"""The port of a model: one turn of a conversation with tools. Adapters keep nothing between turns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeAlias

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.values import Json

MOST_HEARD = 4000
"""Characters that are kept of an answer that was none."""


class Failure(Enum):
    """How a turn can fail. Whichever it is, nothing is done because of it."""

    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    """It could not be reached, or broke off before it had answered."""
    DROPPED = "dropped"
    """The answer stopped in the middle."""
    REFUSED = "refused"
    """The model will not."""
    CUT = "cut"
    """The answer did not fit into `max_tokens`."""
    GARBAGE = "garbage"
    """The answer is none: not JSON, no such form, two answers in one."""
    AUTH = "auth"
    """The key is missing, wrong, or may not use this model."""
    INVALID = "invalid"
    """The service does not take the request as it is."""
    SERVER = "server"
    """The service has a defect."""


class ModelFailed(AstraFlowError):
    """A turn without an answer that could be used."""

    def __init__(self, failure: Failure, message: str, *, retry_after_s: float | None = None) -> None:
        """message: without keys, addresses with passwords, or what the model said."""
        super().__init__(message)
        self.failure = failure
        self.retry_after_s = retry_after_s
        """What the service asks for."""
        self.usage: Usage | None = None
        """What the failed turn has used, where that is known."""
        self.is_estimated = False
        """Whether that is a guess: the service did not say."""
        self.said = ""
        """What came of an answer, cut to a few thousand characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """The model wants a tool."""

    id: str
    name: str
    arguments: Mapping[str, Json] | None
    """None when it was no JSON object: such a call is answered with an error, and does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReply:
    """What a tool answered."""

    call: str
    """Id of the call."""
    content: str
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Opaque:
    """A block that only its service understands (thinking, for one) and wants to have back as it was."""

    block: Mapping[str, Any]


Part: TypeAlias = Said | ToolCall | ToolReply | Opaque


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One side's turn. role: `user` (the prompt, tool replies) or `assistant`."""

    role: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as a model is told of it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """Strict."""


@dataclass(slots=True)
class Heard:
    """What has come of an answer so far. An adapter writes it down while it listens, as its turn may be cut short."""

    usage: "Usage | None" = None
    """As the service has counted it up to now; None while it has said nothing of it."""
    text: str = ""
    """What the model wrote, of whatever kind, cut to `MOST_HEARD` characters: data, and no answer."""
    characters: int = 0
    """All of them."""

    def add(self, text: str) -> None:
        """It wrote more."""
        self.characters += len(text)
        self.text += text[: max(0, MOST_HEARD - len(self.text))]

    def settle(self, text: str) -> None:
        """The answer has come: the model wrote this, and the rest was what it came in."""
        self.characters, self.text = len(text), text[:MOST_HEARD]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A conversation so far. `system` and `tools` are the same in every wake, so that they are cached."""

    system: str
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]
    max_tokens: int
    """Of the answer."""
    timeout_s: float
    heard: Heard = field(default_factory=Heard, compare=False)
    """Where its answer is written down as it comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens, as the service counts them; of a stand-in, a quarter of the characters."""

    input: int = 0
    """Neither read from a cache nor written to one."""
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    @property
    def total(self) -> int:
        """All that passed, cached or not: what budgets count."""
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
    """The model's turn: complete, or there is none."""

    parts: tuple[Part, ...]
    usage: Usage
    model: str
    """As the service names it."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tools it wants, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def text(self) -> str:
        """What it said."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Said)).strip()


class Llm(Protocol):
    """A model."""

    model: str
    is_simulated: bool
    """A stand-in: reports and pages say so."""

    async def reply(self, request: Request) -> Reply:
        """One turn. Raises: ModelFailed, and nothing else."""

    def usd(self, usage: Usage) -> float:
        """What that cost, in US dollars."""

    async def close(self) -> None:
        """Let connections go."""
