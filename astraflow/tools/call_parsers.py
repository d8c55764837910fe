"""Parsers of tool calls: they return the calls in a policy's text, and messages for the policy about unreadable calls.

All parsers take time linear in the text, execute nothing, and never raise. They skip the text before the end of a
thought (`</think>`).
"""

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from astraflow.contract.values import Json
from astraflow.tools.base import Tool

MAX_CALL_CHARACTERS = 65536
"""Maximum length of a call; longer calls are unreadable. Characters."""

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_BLOCK_OPEN, _BLOCK_CLOSE = "```tool_code\n", "```"
_THOUGHT_END = "</think>"


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


def parse_calls(text: str, form: CallFormat, tools: Sequence[Tool]) -> list[ParsedCall]:
    """Returns the calls of a turn in order; an empty list for a turn without calls. tools: tools that may be called.

    >>> parse_calls('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', CallFormat.HERMES, [])
    [ToolCall(name='add', arguments={'a': 1})]
    """
    return list(_PARSERS[form](text.rpartition(_THOUGHT_END)[2], tools))


def closing_strings(form: CallFormat, tools: Sequence[Tool]) -> tuple[str, ...]:
    """Returns the texts that end a call, so that a policy does not write the result itself."""
    if form is CallFormat.HERMES:
        return (_CLOSE,)
    return tuple(f"</{tool.name}>" for tool in tools) if form is CallFormat.XML else ()


def parameter_names(tool: Tool) -> tuple[str, ...]:
    """Returns the names of a tool's parameters, in order."""
    properties = tool.parameters.get("properties")
    return tuple(properties) if isinstance(properties, Mapping) else ()


def _hermes_calls(text: str, tools: Sequence[Tool]) -> Iterator[ParsedCall]:
    for piece in text.split(_OPEN)[1:]:
        source, closing, _ = piece.partition(_CLOSE)
        yield _call_of_json(source) if closing else UnreadableCall(problem=f"A call has no {_CLOSE}.")


def _call_of_json(source: str) -> ParsedCall:
    value = _json(source)
    if isinstance(value, UnreadableCall):
        return value
    name, arguments = (value.get("name"), value.get("arguments", {})) if isinstance(value, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return UnreadableCall(problem='A call is not of the form {"name": "...", "arguments": {...}}.')
    return ToolCall(name=name, arguments=arguments)


def _json(source: str) -> "Json | UnreadableCall":
    if len(source) > MAX_CALL_CHARACTERS:
        return UnreadableCall(problem=f"A call is longer than {MAX_CALL_CHARACTERS} characters.")
    try:
        value: Json = json.loads(source, parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode()  # refuses half of a surrogate pair, which cannot be encoded
    except RecursionError:
        return UnreadableCall(problem="A call is nested too deeply.")
    except ValueError as problem:
        return UnreadableCall(problem=f"A call is not JSON: {str(problem)[:100]}.")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _xml_calls(text: str, tools: Sequence[Tool]) -> Iterator[ParsedCall]:
    """Yields a call for each opening tag of a tool that is not inside another call."""
    by_name = {tool.name: tool for tool in tools}
    if not by_name:
        return
    opening = re.compile("<(" + "|".join(map(re.escape, by_name)) + ")>")
    last_close = {name: text.rfind(f"</{name}>") for name in by_name}
    position = 0
    while match := opening.search(text, position):
        name, position = match[1], match.end()
        if position > last_close[name]:
            yield UnreadableCall(problem=f"A call has no </{name}>.")
            continue
        end = text.index(f"</{name}>", position)
        yield _call_of_tag(by_name[name], text[position:end])
        position = end + len(name) + 3


def _call_of_tag(tool: Tool, source: str) -> ParsedCall:
    names = parameter_names(tool)
    if len(names) != 1:
        return UnreadableCall(problem=f"The tool {tool.name} has {len(names)} arguments and cannot be called by tags.")
    if len(source) > MAX_CALL_CHARACTERS:
        return UnreadableCall(problem=f"A call is longer than {MAX_CALL_CHARACTERS} characters.")
    properties: Any = tool.parameters["properties"]
    if properties[names[0]].get("type", "string") == "string":
        return ToolCall(name=tool.name, arguments={names[0]: source.strip()})
    value = _json(source)
    return value if isinstance(value, UnreadableCall) else ToolCall(name=tool.name, arguments={names[0]: value})


def _python_calls(text: str, tools: Sequence[Tool]) -> Iterator[ParsedCall]:
    stripped = text.strip()
    if stripped.startswith("[") and stripped.endswith("]"):
        yield from _calls_of_source(stripped, tools)
        return
    for piece in text.split(_BLOCK_OPEN)[1:]:
        source, closing, _ = piece.partition(_BLOCK_CLOSE)
        if closing:
            yield from _calls_of_source(source, tools)
        else:
            yield UnreadableCall(problem=f"A block of calls has no {_BLOCK_CLOSE}.")


def _calls_of_source(source: str, tools: Sequence[Tool]) -> Iterator[ParsedCall]:
    """Parses Python source; nothing is executed."""
    if len(source) > MAX_CALL_CHARACTERS:
        yield UnreadableCall(problem=f"A block of calls is longer than {MAX_CALL_CHARACTERS} characters.")
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the policy's text cause warnings
            statements = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:  # MemoryError: nested too deeply
        yield UnreadableCall(problem=f"A block of calls is not Python: {type(problem).__name__}.")
        return
    for statement in statements:
        expression = statement.value if isinstance(statement, ast.Expr) else None
        for node in expression.elts if isinstance(expression, ast.List) else [expression]:
            yield _call_of_node(node, tools)


def _call_of_node(node: ast.expr | None, tools: Sequence[Tool]) -> ParsedCall:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return UnreadableCall(problem="A line is no call of the form name(argument=value).")
    name = node.func.id
    parameters = next((parameter_names(tool) for tool in tools if tool.name == name), ())
    named = [(keyword.arg, keyword.value) for keyword in node.keywords]
    values = [*zip(parameters, node.args, strict=False), *named]
    if len(node.args) > len(parameters) or any(key is None for key, _ in values):
        return UnreadableCall(problem=f"A call of {name} has arguments without a name.")
    try:
        arguments = {str(key): _json_value(ast.literal_eval(value)) for key, value in values}
        json.dumps(arguments, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError, MemoryError):
        return UnreadableCall(problem=f"A call of {name} has an argument that is no literal value.")
    if len(arguments) < len(values):
        return UnreadableCall(problem=f"A call of {name} has an argument twice.")
    return ToolCall(name=name, arguments=arguments)


def _json_value(value: object) -> Json:
    """Returns a literal value as JSON. Raises: ValueError for bytes, sets, complex and infinite numbers."""
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("a key is no text")
        return {key: _json_value(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and abs(value) < float("inf"):
        return value
    raise ValueError("no JSON value")


_PARSERS: Mapping[CallFormat, Callable[[str, Sequence[Tool]], Iterator[ParsedCall]]] = {
    CallFormat.HERMES: _hermes_calls,
    CallFormat.XML: _xml_calls,
    CallFormat.PYTHON: _python_calls,
}
