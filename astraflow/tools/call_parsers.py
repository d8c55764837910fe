"""Parsers of tool calls: they return the calls in a policy's text, and messages for the policy about unreadable calls.

All parsers take time linear in the text, execute nothing, and never raise. They read a text from its begin: what a call
holds in quotes, such as the closing tag of a call or the end of a thought (`</think>`), belongs to the call. Calls in a
thought are not executed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from astraflow.models.answer_texts import CALL_BEGIN, CALL_END, THOUGHT_BEGIN, THOUGHT_END
from astraflow.tools.base import Tool
from astraflow.tools.calls import (
    MAX_CALL_CHARACTERS,
    BrokenJson,
    CallFormat,
    CallReader,
    CallSpan,
    ParsedCall,
    ToolCall,
    UnreadableCall,
    json_end,
    json_value,
    parameter_names,
    skip_space,
    unreadable,
)
from astraflow.tools.python_calls import PythonCalls, calls_in_brackets


def parse_calls(text: str, form: CallFormat, tools: Sequence[Tool]) -> list[ParsedCall]:
    """Returns the calls of a turn in order; an empty list for a turn without calls. tools: tools that may be called.

    >>> parse_calls('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', CallFormat.HERMES, [])
    [ToolCall(name='add', arguments={'a': 1})]
    """
    if form is CallFormat.PYTHON:
        for message in dict.fromkeys([text, text.partition(THOUGHT_END)[2], text.rpartition(THOUGHT_END)[2]]):
            if calls := calls_in_brackets(message, tools):
                return list(calls)
    turn = _scanned(text, form, tools)
    hidden = [call for span in turn.in_thoughts for call in span.calls]
    if not turn.spans and any(isinstance(call, ToolCall) for call in hidden) and not text[turn.thoughts_end :].strip():
        return [UnreadableCall(problem=f"A call is inside a thought; write calls after {THOUGHT_END}.")]
    return [call for span in turn.spans for call in span.calls]


def call_spans(text: str, form: CallFormat, tools: Sequence[Tool]) -> list[CallSpan]:
    """Returns the places of the calls in a text that begins after a thought."""
    return _scanned(text, form, tools, may_begin_in_thought=False).spans


def thought_end(text: str) -> int:
    """Returns the place of the first end of a thought that is not inside a call of the form `hermes`; -1 without."""
    return _scanned(text, CallFormat.HERMES, ()).first_end


def ends_inside_call(text: str, form: CallFormat, tools: Sequence[Tool]) -> bool:
    """Returns whether the text ends inside a JSON text of a call: a closing string there does not end the call."""
    spans = _scanned(text, form, tools).spans
    return bool(spans) and spans[-1].is_cut


def closing_strings(form: CallFormat, tools: Sequence[Tool]) -> tuple[str, ...]:
    """Returns the texts that end a call, so that a policy does not write the result itself. One that stands inside a
    text of a call does not end it (`ends_inside_call`)."""
    if form is CallFormat.HERMES:
        return (CALL_END,)
    return tuple(f"</{tool.name}>" for tool in tools) if form is CallFormat.XML else ()


@dataclass(slots=True)
class _Turn:
    spans: list[CallSpan] = field(default_factory=list)
    in_thoughts: list[CallSpan] = field(default_factory=list)
    first_end: int = -1
    thoughts_end: int = 0
    """Place after the last thought."""


def _scanned(text: str, form: CallFormat, tools: Sequence[Tool], *, may_begin_in_thought: bool = True) -> _Turn:
    """Returns the calls of a text. A template may begin a thought, so that only its end is in the text. A thought that
    begins in the text ends inside what only looks like a call."""
    reader = _reader(text, form, tools)
    pattern = re.compile(f"{reader.opening.pattern}|(?P<thought></?think>)", reader.opening.flags)
    turn, strays = _Turn(), list[CallSpan]()
    begin, is_open, is_thought = 0, may_begin_in_thought, False
    position = 0
    while match := pattern.search(text, position):
        if match["thought"] is None:
            span = reader.read(match)
            end = text.find(THOUGHT_END, span.begin, span.end) if is_thought else -1
            if end >= 0 and (form is CallFormat.XML or not span.is_readable):
                position = end
                continue
            (turn.spans if span.calls else strays).append(span)
            position = max(span.end, match.end())
            continue
        position = match.end()
        if match["thought"] == THOUGHT_BEGIN:
            begin, is_open, is_thought = len(turn.spans), True, True
        elif is_open:
            turn.first_end = match.start() if turn.first_end < 0 else turn.first_end
            turn.in_thoughts += turn.spans[begin:]
            del turn.spans[begin:]
            strays.clear()
            turn.thoughts_end, is_open, is_thought = position, False, False
    if strays and not turn.spans:
        turn.spans = [unreadable(strays[0].begin, strays[0].end, "A closing tag of a call has no opening tag.")]
    return turn


def _reader(text: str, form: CallFormat, tools: Sequence[Tool]) -> CallReader:
    if form is CallFormat.PYTHON:
        return PythonCalls(text, tools)
    return _HermesCalls(text) if form is CallFormat.HERMES else _TagCalls(text, tools)


class _HermesCalls:
    """Reads JSON objects between tags."""

    opening = re.compile(r"<[ \t]*/?[ \t]*tool_call\b[^<>\n]{0,64}>", re.IGNORECASE)

    def __init__(self, text: str) -> None:
        self._text = text
        self._last_close = text.rfind(CALL_END)

    def read(self, match: re.Match[str]) -> CallSpan:
        """Returns the call that begins here."""
        text, begin, start = self._text, match.start(), match.end()
        if match[0] == CALL_END:
            return CallSpan(begin=begin, end=start, calls=())
        if match[0] != CALL_BEGIN:
            return self._broken(begin, start, f"Write the tags of a call as {CALL_BEGIN} and {CALL_END}.")
        try:
            end = json_end(text, start)
        except BrokenJson as problem:
            cause = str(problem) if start <= self._last_close else f"A call has no {CALL_END}."
            return self._broken(begin, max(start, problem.at), cause, is_cut=problem.is_cut)
        if end - start > MAX_CALL_CHARACTERS:
            return self._broken(begin, end, f"A call is longer than {MAX_CALL_CHARACTERS} characters.")
        close = skip_space(text, end)
        if not text.startswith(CALL_END, close):
            is_over = close == len(text) or self.opening.match(text, close) is not None
            cause = f"A call has no {CALL_END}." if is_over else "A call has text after its JSON object."
            return self._broken(begin, end, cause)
        return CallSpan(begin=begin, end=close + len(CALL_END), calls=(_call_of_json(text[start:end]),))

    def _broken(self, begin: int, at: int, problem: str, *, is_cut: bool = False) -> CallSpan:
        """Returns an unreadable call, which goes to its closing tag if no other tag comes first."""
        following = _TAG.search(self._text, at)
        is_closed = following is not None and following[0] == CALL_END
        return unreadable(begin, following.end() if following and is_closed else at, problem, is_cut=is_cut)


_TAG = re.compile(f"{_HermesCalls.opening.pattern}|</?think>", re.IGNORECASE)


def _call_of_json(source: str) -> ParsedCall:
    value = json_value(source)
    if isinstance(value, UnreadableCall):
        return value
    name, arguments = (value.get("name"), value.get("arguments", {})) if isinstance(value, dict) else (None, None)
    if isinstance(value, dict) and "arguments" not in value and len(value) > 1:
        arguments = None  # they have another name, and must not be lost
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return UnreadableCall(problem='A call is not of the form {"name": "...", "arguments": {...}}.')
    return ToolCall(name=name, arguments=arguments)


class _TagCalls:
    """Reads arguments between tags of the tool's name."""

    def __init__(self, text: str, tools: Sequence[Tool]) -> None:
        self._text = text
        self._tools = {tool.name: tool for tool in tools}
        self._names = {tool.name.lower(): tool.name for tool in tools}
        self._last_close = {name: text.rfind(f"</{name}>") for name in self._tools}
        names = "|".join(map(re.escape, sorted(self._tools, key=len, reverse=True)))
        self.opening = re.compile(
            rf"</?(?P<name>{names})(?:\s[^<>\n]{{0,200}})?/?>" if names else "(?!)", re.IGNORECASE
        )

    def read(self, match: re.Match[str]) -> CallSpan:
        """Returns the call that begins here."""
        begin, start = match.start(), match.end()
        name = match["name"] if match["name"] in self._tools else self._names[match["name"].lower()]
        if match[0] == f"</{name}>":
            return CallSpan(begin=begin, end=start, calls=())
        if match[0] != f"<{name}>":
            return self._broken(name, begin, start, f"Write the tags of a call as <{name}> and </{name}>.")
        if start > self._last_close[name]:
            return unreadable(begin, start, f"A call has no </{name}>.")
        names = parameter_names(self._tools[name])
        if len(names) != 1:
            problem = f"The tool {name} has {len(names)} arguments and cannot be called by tags."
            return self._broken(name, begin, start, problem)
        properties: Any = self._tools[name].parameters["properties"]
        if properties[names[0]].get("type", "string") == "string":
            return self._text_argument(name, names[0], begin, start)
        return self._json_argument(name, names[0], begin, start)

    def _text_argument(self, name: str, parameter: str, begin: int, start: int) -> CallSpan:
        text, tag = self._text, f"</{name}>"
        end = text.index(tag, start)
        following = text.find(f"<{name}>", end)
        last = text.rfind(tag, start, following if following >= 0 else len(text))
        _, thought, answer = text[start:end].partition(THOUGHT_END)
        if thought and f"<{name}>" in answer:  # a thought that the template began only mentions the tag
            return CallSpan(begin=begin, end=start, calls=())
        if last != end:  # of two ends, either may be the argument's; a part of it must not be executed
            return unreadable(begin, last + len(tag), f"A call has {tag} twice, so that its end is unclear.")
        if end - start > MAX_CALL_CHARACTERS:
            problem = f"A call is longer than {MAX_CALL_CHARACTERS} characters."
            return unreadable(begin, end + len(tag), problem)
        call = ToolCall(name=name, arguments={parameter: text[start:end].strip()})
        return CallSpan(begin=begin, end=end + len(tag), calls=(call,))

    def _json_argument(self, name: str, parameter: str, begin: int, start: int) -> CallSpan:
        try:
            end = json_end(self._text, start)
        except BrokenJson as problem:
            return self._broken(name, begin, max(start, problem.at), str(problem), is_cut=problem.is_cut)
        close, tag = skip_space(self._text, end), f"</{name}>"
        if not self._text.startswith(tag, close):
            return self._broken(name, begin, end, "A call has text after its JSON value.")
        value = json_value(self._text[start:end])
        call = value if isinstance(value, UnreadableCall) else ToolCall(name=name, arguments={parameter: value})
        return CallSpan(begin=begin, end=close + len(tag), calls=(call,))

    def _broken(self, name: str, begin: int, at: int, problem: str, *, is_cut: bool = False) -> CallSpan:
        following = self.opening.search(self._text, at)
        is_closed = following is not None and following[0] == f"</{name}>"
        return unreadable(begin, following.end() if following and is_closed else at, problem, is_cut=is_cut)
