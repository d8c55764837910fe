"""Model calls of an agent program and their replies, independent of the API dialect in which they arrive."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.models.tokenizers import ToolSchema


class Role(Enum):
    """Author of a message."""

    SYSTEM = "system"
    """Also `developer` messages."""
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    """Result of one function call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    """Call of one of the agent's tools by the model."""

    id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it or the client sent it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMessage:
    """One message of a conversation, as a dialect parsed it."""

    role: Role
    content: str = ""
    """Text; absent content is empty, and several text parts are joined."""
    reasoning: str | None = None
    """Thoughts of an assistant message; None when the client leaves them out."""
    function_calls: tuple[FunctionCall, ...] = ()
    """Function calls in an assistant message."""
    call_id: str = ""
    """`FunctionCall.id` of the call that a tool message answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """Options that the dialects have in common; None where the client left one out."""

    model: str
    """Model name as the client sent it: chooses the policy."""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    json_schema: str = ""
    """JSON schema of the reply, as JSON; empty: none."""
    retry_key: str = ""
    """Equal for a call and its retries: the client's idempotency key, or a digest of the body. Empty: never joined."""
    is_retry: bool = False
    """The call may repeat an earlier one with its key: the client says so, or it sent an idempotency key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A request for the next assistant message."""

    options: CallOptions
    messages: tuple[AgentMessage, ...]
    tools: tuple[ToolSchema, ...] = ()
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or the name of a tool."""
    allows_parallel_calls: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCall:
    """A request for tokens after exact tokens, by clients that render prompts themselves."""

    options: CallOptions
    prompt: Int32Array
    stop_tokens: tuple[int, ...] = ()


class ReplyFinish(Enum):
    """Reason for the end of a reply."""

    STOP = "stop"
    LENGTH = "length"
    FUNCTION_CALLS = "function_calls"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """The next assistant message."""

    id: str
    """Unique in the session; `previous_response_id` refers to it."""
    message: AgentMessage
    finish: ReplyFinish
    prompt_tokens: int
    cached_tokens: int
    """Tokens of the prompt that an earlier call of the session already had."""
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReply:
    """Sampled tokens: int32 `[n]` and logprobs float32 `[n]`, natural log."""

    id: str
    tokens: Int32Array
    logprobs: Float32Array
    finish: ReplyFinish


class Refusal(Enum):
    """Kind of a refused call, which each dialect expresses in its own words."""

    INVALID = "invalid"
    """The request is malformed or asks for something that is not supported; a retry is useless. HTTP 400."""
    LIMIT = "limit"
    """A limit of the session (turns, tokens, time) is reached; a retry is useless. HTTP 400."""
    UNAUTHENTICATED = "unauthenticated"
    """Unknown secret. HTTP 401."""
    NOT_FOUND = "not_found"
    """Unknown path, or a `previous_response_id` that the session does not have. HTTP 404."""
    ENDED = "ended"
    """The session has ended. HTTP 409."""
    TOO_LARGE = "too_large"
    """The body is too large. HTTP 413."""
    BUSY = "busy"
    """Too many calls at once, or no weights are loaded: repeat later. HTTP 429 with `Retry-After`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextUse:
    """Length of a conversation that exceeds the limit."""

    tokens: int
    limit: int


class CallRefused(AstraFlowError):
    """A call of an agent that is answered with an error. The message is for the agent's author.

    context: of a conversation that is too long, which agents recognize by the words of the API, and then compact.
    """

    def __init__(
        self, message: str, *, refusal: Refusal, code: str, retry_after_s: int = 1, context: ContextUse | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.refusal = refusal
        self.retry_after_s = retry_after_s
        self.context = context


class CallHandler(Protocol):
    """Answers the model calls of one session, behind the proxy: policies of a run with exact traces, or an upstream
    endpoint that is only evaluated.

    Cancelling a call aborts its generation and leaves no trace: the client has gone. Any error other than `CallRefused`
    fails the session and is answered with HTTP 500 in the dialect's words.
    """

    @property
    def models(self) -> Sequence[str]:
        """Names that `GET /v1/models` lists: the policies."""

    async def complete(self, call: ModelCall) -> ModelReply:
        """Returns the next assistant message. Raises: CallRefused."""

    async def generate(self, call: TokenCall) -> TokenReply:
        """Continues exact tokens. Raises: CallRefused."""

    async def count_tokens(self, call: ModelCall) -> int:
        """Returns the length of the prompt, in tokens. Raises: CallRefused."""

    def conversation(self, reply_id: str) -> tuple[AgentMessage, ...]:
        """Returns the messages up to and including an earlier reply. Raises: CallRefused for an unknown id."""
