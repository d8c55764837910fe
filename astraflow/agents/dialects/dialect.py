"""Port of a dialect, and what its implementations share: refusals, JSON and server-sent events."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import orjson

from astraflow.agents.calls import (
    AgentMessage,
    CallRefused,
    ModelCall,
    ModelReply,
    Refusal,
    TokenCall,
    TokenReply,
)

Json = dict[str, Any]
"""A JSON object."""
C = TypeVar("C", ModelCall, TokenCall)
R = TypeVar("R", ModelReply, TokenReply, contravariant=True)

STATUS = {
    Refusal.INVALID: 400,
    Refusal.LIMIT: 400,
    Refusal.UNAUTHENTICATED: 401,
    Refusal.NOT_FOUND: 404,
    Refusal.ENDED: 409,
    Refusal.TOO_LARGE: 413,
    Refusal.BUSY: 429,
}
"""HTTP status of each refusal, in every dialect."""


_ANSWER_DEPTH = 16
"""Levels of an answer above a value of the request that it repeats. Count."""
_SAFE_DEPTH = 200
"""Levels of a value that can always be handled. Count."""
_DIGITS_AS_0 = bytes.maketrans(b"123456789", b"000000000")
_LONG_INTEGER = b"0" * 19
"""Digits of which integers beyond 64 bits have at least as many, and which orjson rounds."""


class InvalidCall(CallRefused):
    """The request is malformed or asks for something that is not supported."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message, refusal=Refusal.INVALID, code=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedMessages:
    """Messages of an answered request, which the next one of the session usually begins with."""

    sent: Sequence[Any] = ()
    """JSON values as the client sent them."""
    messages: tuple[AgentMessage, ...] = ()
    """A message for each."""

    def repeated(self, sent: Any) -> tuple[AgentMessage, ...]:
        """Returns the messages if `sent` begins with them; otherwise none."""
        is_repeated = isinstance(sent, list) and sent[: len(self.sent)] == self.sent
        return self.messages if is_repeated else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """Facts about a request that are not in its body."""

    retry_key: str
    """As in `CallOptions`."""
    is_retry: bool
    created_s: int
    """Time of the request. Unix seconds."""
    conversation: Callable[[str], tuple[AgentMessage, ...]]
    """Returns the messages of an earlier reply of the session that a request with the id `previous_response_id`
    continues, without the instructions of that time. Raises: CallRefused."""
    known: ParsedMessages = ParsedMessages()
    """Messages that need not be parsed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall(Generic[C]):
    """A request, parsed."""

    call: C
    body: Json
    """As the client sent it."""
    context: CallContext
    is_streaming: bool


class Dialect(Protocol[C, R]):
    """An API for model calls. Implementations have no state."""

    @property
    def name(self) -> str:
        """Name in `AgentCall.dialect`."""

    def parse(self, body: Json, context: CallContext) -> ParsedCall[C]:
        """Returns the request. Raises: CallRefused."""

    def reply(self, parsed: ParsedCall[C], reply: R) -> Json:
        """Returns the body of the answer to a request that does not stream."""

    def stream(self, parsed: ParsedCall[C], body: Json) -> Iterator[bytes]:
        """Yields the server-sent events that carry an answer. body: of `reply`."""

    def error(self, problem: CallRefused, status: int) -> Json:
        """Returns the body of an error. status: HTTP status; 500 for a defect."""

    def stream_error(self, problem: CallRefused, status: int) -> bytes:
        """Returns the event that ends a stream which has begun with an error."""


class CountingDialect(Dialect[ModelCall, ModelReply], Protocol):
    """A dialect that also counts the tokens of a prompt."""

    def count(self, tokens: int) -> Json:
        """Returns the body of the answer to a request for the number of tokens."""


def parse_json(data: bytes | bytearray) -> Json:
    """Returns the JSON object. Raises: InvalidCall."""
    value = json_value(data)
    if not isinstance(value, dict):
        raise InvalidCall(
            f"cannot read the request: the body is a JSON {_kind(value)}; send a JSON object",
            code="agent.not_an_object",
        )
    return value


def json_value(data: bytes | bytearray) -> Any:
    """Returns a JSON value: its integers exactly, and a number beyond the largest of 64 bits as that one.

    Raises: InvalidCall, also for a value that is nested too deeply to be handled, or to be repeated in an answer.
    """
    try:
        value = _quickly_read(data)
    except (ValueError, RecursionError) as problem:
        raise InvalidCall(
            f"cannot read the request: the body is not JSON: {problem}; send a JSON object", code="agent.not_json"
        ) from None
    if data.count(b"{") + data.count(b"[") > _SAFE_DEPTH:  # so that usual bodies are not measured
        _check_depth(value)
    return value


def to_json(value: object) -> bytes:
    """Returns compact JSON."""
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _quickly_read(data: bytes | bytearray) -> Any:
    """Returns a JSON value. Raises: ValueError, RecursionError."""
    try:
        return _exact_value(data) if _LONG_INTEGER in data.translate(_DIGITS_AS_0) else orjson.loads(data)
    except orjson.JSONDecodeError:  # it also refuses numbers beyond the largest of 64 bits
        return _exact_value(data)


def _exact_value(data: bytes | bytearray) -> Any:
    """Returns a JSON value with whatever numbers. Raises: ValueError, RecursionError."""
    value = json.loads(data.decode(), parse_float=nearest_float, parse_constant=_refused_constant)
    to_json(value)  # raises for half of a surrogate pair, which is no character
    return value


def nearest_float(text: str) -> float:
    """Returns the finite float that is nearest to a JSON number."""
    return max(-sys.float_info.max, min(float(text), sys.float_info.max))


def _refused_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _check_depth(value: object) -> None:
    for _ in range(_ANSWER_DEPTH):
        value = [value]
    try:
        orjson.dumps(value)
    except TypeError:
        if _is_deep(value):
            raise InvalidCall(
                f"cannot use the request: its values are nested more than {_SAFE_DEPTH} levels deep; send flatter ones",
                code="agent.nested_too_deeply",
            ) from None


def _is_deep(value: object) -> bool:
    level: list[Any] = [value]
    for _ in range(_SAFE_DEPTH + _ANSWER_DEPTH):
        parents = [parent.values() if isinstance(parent, dict) else parent for parent in level if _is_nested(parent)]
        level = [child for children in parents for child in children]
    return bool(level)


def _is_nested(value: object) -> bool:
    return isinstance(value, dict | list)


def event(data: object, *, name: str = "") -> bytes:
    """Returns a server-sent event with JSON data."""
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + to_json(data) + b"\n\n"


def openai_error(problem: CallRefused, status: int) -> Json:
    """Returns the body of an error in the words of the OpenAI API, which chat, responses and tokens share."""
    kinds: Mapping[int, str] = {
        401: "authentication_error",
        404: "not_found_error",
        409: "conflict_error",
        429: "rate_limit_error",
        500: "server_error",
    }
    kind = kinds.get(status, "invalid_request_error")
    if problem.context is not None:
        used, limit = problem.context.tokens, problem.context.limit
        words = f"This model's maximum context length is {limit} tokens. However, your messages have {used} tokens."
        code = "context_length_exceeded"
        return {"error": {"message": f"{words} {problem}", "type": kind, "param": "messages", "code": code}}
    return {"error": {"message": str(problem), "type": kind, "param": None, "code": problem.code}}


def _kind(value: object) -> str:
    return {list: "array", str: "string", bool: "boolean", type(None): "null"}.get(type(value), "number")
