"""Tool calls that are written as calls of Python functions. Nothing is executed."""

import ast
import json
import re
import warnings
from collections.abc import Iterator, Sequence

from astraflow.contract.values import Json
from astraflow.tools.base import Tool
from astraflow.tools.calls import (
    MAX_CALL_CHARACTERS,
    CallSpan,
    ParsedCall,
    ToolCall,
    UnreadableCall,
    parameter_names,
    unreadable,
)

_FENCE = "```"
_NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)  # MemoryError: nested too deeply
_TOKEN = re.compile(
    r"'''(?:\\.|[^\\])*?(?:'''|\Z)|\"\"\"(?:\\.|[^\\])*?(?:\"\"\"|\Z)"
    r"|'(?:\\.|[^'\\\n])*'?|\"(?:\\.|[^\"\\\n])*\"?|#[^\n]*|```",
    re.DOTALL,
)
"""Texts, comments and fences in Python source. A text without an end goes to the end of its line, or of all."""


class PythonCalls:
    """Reads blocks of calls. A fence inside a text of a call does not end the block."""

    opening = re.compile(r"```[ \t]*tool_code\b([ \t]*\r?\n)?", re.IGNORECASE)

    def __init__(self, text: str, tools: Sequence[Tool]) -> None:
        self._text = text
        self._tools = tools

    def read(self, match: re.Match[str]) -> CallSpan:
        """Returns the calls of the block that begins here."""
        text, start = self._text, match.end()
        tokens = (token for token in _TOKEN.finditer(text, start) if token[0] == _FENCE)
        fence = next(tokens, None)
        if not match[1] or not match[0].startswith(f"{_FENCE}tool_code"):
            problem = f"Begin a block of calls with {_FENCE}tool_code on a line of its own."
            return unreadable(match.start(), fence.end() if fence else len(text), problem)
        if fence is None or self.opening.match(text, fence.start()):
            end = fence.start() if fence else len(text)
            return unreadable(match.start(), end, f"A block of calls has no {_FENCE}.")
        calls = tuple(_calls_of_source(text[start : fence.start()], self._tools))
        return CallSpan(begin=match.start(), end=fence.end(), calls=calls)


def calls_in_brackets(text: str, tools: Sequence[Tool]) -> tuple[ParsedCall, ...]:
    """Returns the calls of a message that is a list of calls; empty for every other message, such as an answer that is
    a list of numbers."""
    source = text.strip()
    if not (source.startswith("[") and source.endswith("]")):
        return ()
    names = {tool.name for tool in tools}
    try:
        listed = _parsed(source) if len(source) <= MAX_CALL_CHARACTERS else []
    except _NOT_PYTHON as problem:
        is_call = any(re.search(rf"\b{re.escape(name)}\s*\(", source) for name in names)
        is_nested = not isinstance(problem, SyntaxError) or "nested" in problem.msg
        return tuple(_calls_of_source(source, tools)) if is_call or is_nested else ()
    nodes = [node for item in listed for node in getattr(getattr(item, "value", None), "elts", [])]
    is_known = any(isinstance(node, ast.Call) and _name(node.func) in names for node in nodes)
    is_named = bool(nodes) and all(isinstance(node, ast.Call) and node.keywords and not node.args for node in nodes)
    is_long = len(source) > MAX_CALL_CHARACTERS
    return tuple(_calls_of_source(source, tools)) if is_known or is_named or is_long else ()


def _name(node: ast.expr) -> str:
    """Returns the name of what is called; that of the method for `tools.search`."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _parsed(source: str) -> list[ast.stmt]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in the policy's text cause warnings
        return ast.parse(source).body


def _calls_of_source(source: str, tools: Sequence[Tool]) -> Iterator[ParsedCall]:
    if len(source) > MAX_CALL_CHARACTERS:
        yield UnreadableCall(problem=f"A block of calls is longer than {MAX_CALL_CHARACTERS} characters.")
        return
    try:
        statements = _parsed(source)
    except _NOT_PYTHON as problem:
        yield UnreadableCall(problem=f"A block of calls is not Python: {type(problem).__name__}.")
        return
    if not statements:
        yield UnreadableCall(problem="A block of calls is empty.")
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
        return UnreadableCall(problem=f"A call of {name} has an argument that is no literal value, or not finite.")
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
