"""Tool calls in the text of a policy: their forms, and readers of single calls."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from astraflow.contract.values import Json
from astraflow.tools.base import Tool

MAX_CALL_CHARACTERS = 65536
"""Maximum length of a call; longer calls are unreadable. Characters."""

_TOO_LONG = f"A call is longer than {MAX_CALL_CHARACTERS} characters."
_MAX_DIGITS = 4300
"""Digits of the longest integer that Python reads."""
_SPACE = re.compile(r"[ \t\r\n]*")


class CallFormat(Enum):
    """Form in which a policy writes tool calls."""

    HERMES = "hermes"
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes and Qwen models write it."""
    XML = "xml"
    """`<NAME>argument</NAME>`, for tools with one argument."""
    PYTHON = "python"
    """`NAME(argument=value)`, one on each line of a block that begins with ```` ```tool_code ````, or a message that is
    a list of calls in brackets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """Call of a tool by its name; the tool may not exist."""

    name: str
    arguments: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableCall:
    """Text that looks like a call but cannot be parsed."""

    problem: str
    """Message for the policy."""


ParsedCall = ToolCall | UnreadableCall


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpan:
    """Part of a text that is one call, or one block of calls."""

    begin: int
    end: int
    calls: tuple[ParsedCall, ...]
    """Empty: a mark without a call, such as a closing tag on its own."""
    is_cut: bool = False
    """The text ends inside a JSON text of the call, where a closing tag is a part of the text."""

    @property
    def is_readable(self) -> bool:
        """True if every call was parsed."""
        return all(isinstance(call, ToolCall) for call in self.calls)


class CallReader(Protocol):
    """Reads the calls of one form in one text."""

    opening: re.Pattern[str]
    """Matches whatever looks like the begin of a call."""

    def read(self, match: re.Match[str]) -> CallSpan:
        """Returns the call at a match of `opening`, which ends behind the match or later."""


class BrokenJson(Exception):
    """Text that begins no JSON value; the message tells the policy why."""

    def __init__(self, problem: str, *, at: int, is_cut: bool = False) -> None:
        super().__init__(problem)
        self.at = at
        """Place up to which the text could have been JSON."""
        self.is_cut = is_cut
        """The text ends inside a text in quotes."""


def unreadable(begin: int, end: int, problem: str, *, is_cut: bool = False) -> CallSpan:
    """Returns a part of a text that looks like a call but is none."""
    return CallSpan(begin=begin, end=end, calls=(UnreadableCall(problem=problem),), is_cut=is_cut)


def parameter_names(tool: Tool) -> tuple[str, ...]:
    """Returns the names of a tool's parameters, in order."""
    properties = tool.parameters.get("properties")
    return tuple(properties) if isinstance(properties, Mapping) else ()


def json_end(text: str, begin: int) -> int:
    """Returns the end of the JSON value at `begin`. Tags inside its texts do not end it. Raises: BrokenJson."""
    at = skip_space(text, begin)
    source = text[at : at + MAX_CALL_CHARACTERS + 1]  # an error of the decoder costs time linear in its text
    try:
        return at + _extent(source, is_strict=True)
    except RecursionError:
        raise BrokenJson("A call is nested too deeply.", at=at) from None
    except json.JSONDecodeError as problem:
        is_endless = problem.msg.startswith("Unterminated string")
        position = problem.pos
        if problem.msg.startswith("Invalid control character"):  # a line break in a text: refused with all that follows
            try:
                return at + _extent(source, is_strict=False)
            except json.JSONDecodeError as lenient:
                position = len(source) if lenient.msg.startswith("Unterminated string") else lenient.pos
            except RecursionError:
                position = problem.pos
        if len(source) > MAX_CALL_CHARACTERS and (is_endless or position >= MAX_CALL_CHARACTERS):
            raise BrokenJson(_TOO_LONG, at=at + len(source)) from None
        end = len(source) if is_endless else position
        raise BrokenJson(_described(problem), at=at + end, is_cut=is_endless) from None


def json_value(source: str) -> Json | UnreadableCall:
    """Returns a JSON value that every JSON parser reads alike: finite numbers, valid Unicode, each key once."""
    if len(source) > MAX_CALL_CHARACTERS:
        return UnreadableCall(problem=_TOO_LONG)
    try:
        value: Json = json.loads(
            source, parse_constant=_constant, parse_float=_float, parse_int=_int, object_pairs_hook=_unique
        )
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        return UnreadableCall(problem="A call is nested too deeply.")
    except UnicodeEncodeError:
        return UnreadableCall(problem="A call is not JSON: it has half of a surrogate pair, which is no character.")
    except ValueError as problem:
        return UnreadableCall(problem=_described(problem))
    return value


def skip_space(text: str, at: int) -> int:
    """Returns the position of the next character that is no JSON white space."""
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _extent(source: str, *, is_strict: bool) -> int:
    decoder = json.JSONDecoder(strict=is_strict, parse_float=_ignored, parse_int=_ignored, parse_constant=_ignored)
    _, end = decoder.raw_decode(source)
    return end


def _ignored(_: str) -> None:
    return None


def _described(problem: ValueError) -> str:
    return f"A call is not JSON: {str(problem)[:100]}."


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


def _int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number has more than {_MAX_DIGITS} digits")
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"an object has the key {repeated[:40]!r} twice")
    return value
