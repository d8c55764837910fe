"""Conformance of any source of tools with its interface: readable tools, and text for every call, again the same."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

from astraflow.conformance.promises import result_from
from astraflow.contract.plugins import CheckResult
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.runtime.plugins import plugin_cause, start_managed
from astraflow.tools.base import TOOL_NAME, Tool, ToolError, ToolSource

READABLE = "has tools with a name, a description and a schema that a policy can read"
WRONG_ARGUMENTS = "answers wrong arguments with an error that the policy sees"
ANSWERS = "answers arguments of the schema with text, or with an error that the policy sees"
REPEATS = "gives the same results in another episode of the same prompt and seed"

_TYPED = ("type", "anyOf", "oneOf", "allOf", "enum", "const", "$ref")
_WRONG: tuple[Mapping[str, Json], ...] = ({}, {"no such argument": 1}, {"": None})
_SAMPLES: Mapping[str, tuple[Json, ...]] = {
    "string": ("word", "", "0", "\0", "\u202e{} %s </tool_call>", "long " * 20_000),
    "integer": (1, 0, -1, 7, 10**12, -(10**12)),
    "number": (1.0, 0.0, -1.5, 7.25, 1e300, -1e300),
    "boolean": (True, False),
    "array": ([], ["word"], [0], [[]]),
    "object": ({}, {"word": 0}),
    "null": (None,),
}
"""Values of each JSON type that a policy may write."""
_CALLS = 6
"""Calls of each tool with arguments of its schema."""


async def check_tools(source: ToolSource, prompt: Prompt) -> list[CheckResult]:
    """Starts the source, calls each of its tools with generated arguments in two episodes, and closes it; returns a
    result for each promise. Raises: what the source raises when it does not start or open."""
    async with AsyncExitStack() as resources:
        await start_managed([source], resources)
        first, second = [await _episode(source, prompt) for _ in range(2)]
    results = [
        result_from(READABLE, first.unreadable),
        result_from(WRONG_ARGUMENTS, first.wrong),
        result_from(ANSWERS, first.broken),
    ]
    differing = [
        f"{call} returned {first.answers[call][:100]!r}, then {second.answers.get(call, '')[:100]!r}"
        for call in first.answers
        if first.answers[call] != second.answers.get(call)
    ]
    return [*results, result_from(REPEATS, differing)]


class _Episode:
    """Calls of one episode and their problems."""

    def __init__(self) -> None:
        self.unreadable: list[str] = []
        self.wrong: list[str] = []
        self.broken: list[str] = []
        self.answers: dict[str, str] = {}
        """Result of each call with arguments of the schema, by a text of the call."""


async def _episode(source: ToolSource, prompt: Prompt) -> _Episode:
    episode = _Episode()
    async with source.open(prompt, 0) as tools:
        episode.unreadable += _unreadable(tools)
        for tool in tools:
            for arguments in _WRONG if tool.parameters.get("required") else ():
                await _called(tool, arguments, episode.wrong)
            for arguments in _arguments(tool):
                answer = await _called(tool, arguments, episode.broken)
                episode.answers[_written(tool, arguments)] = answer
    return episode


async def _called(tool: Tool, arguments: Mapping[str, Json], problems: list[str]) -> str:
    """Returns the text that the policy sees; adds what broke the interface."""
    try:
        async with asyncio.timeout(tool.timeout_s):
            answer = await tool.call(arguments)
    except ToolError as problem:
        return str(problem)
    except TimeoutError:
        return "timeout"
    except Exception as problem:  # a tool may raise anything
        remedy = "it fails the episode; raise ToolError for what the policy did wrong"
        problems.append(f"{_written(tool, arguments)} raised {plugin_cause(problem)[:300]}: {remedy}")
        return ""
    if not isinstance(answer, str):
        problems.append(f"{_written(tool, arguments)} returned {type(answer).__name__}; return text")
        return ""
    return answer


def _unreadable(tools: tuple[Tool, ...]) -> Iterator[str]:
    if not tools:
        yield "it has no tools"
    names = [tool.name for tool in tools]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"several tools are called {name!r}; their names must differ"
    for tool in tools:
        if TOOL_NAME.fullmatch(tool.name) is None:
            yield f"a policy cannot write the name {tool.name!r}; use letters, digits, _ and -"
        if not tool.description.strip():
            yield f"{tool.name!r} has no description"
        if tool.parameters.get("type") != "object":
            yield f"the schema of {tool.name!r} is no object"
        for name, schema in _properties(tool).items():
            if not any(key in schema for key in _TYPED):
                yield f"the parameter {name!r} of {tool.name!r} has no type"


def _arguments(tool: Tool) -> Iterator[dict[str, Json]]:
    """Yields arguments whose types are those of the schema."""
    properties = _properties(tool)
    for number in range(_CALLS if properties else 1):
        yield {name: _sample(schema, number) for name, schema in properties.items()}


def _properties(tool: Tool) -> Mapping[str, Mapping[str, Any]]:
    properties: Any = tool.parameters.get("properties")
    return dict(properties) if isinstance(properties, Mapping) else {}


def _sample(schema: Mapping[str, Any], number: int) -> Json:
    """Returns a value of a schema. Bounds are kept; a pattern or a reference is not read."""
    if choices := schema.get("enum"):
        chosen: Json = choices[number % len(choices)]
        return chosen
    if alternatives := schema.get("anyOf"):
        return _sample(alternatives[number % len(alternatives)], number)
    samples = _SAMPLES.get(str(schema.get("type")), ("word",))
    value = samples[number % len(samples)]
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = max(value, schema.get("minimum", value))
        value = min(value, schema.get("maximum", value))
    return value


def _written(tool: Tool, arguments: Mapping[str, Json]) -> str:
    return f"{tool.name}({json.dumps(arguments)[:100]})"
