"""Tools from typed Python functions."""

import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, cast, overload

from pydantic import Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.plugins import PLUGINS_VARIABLE, import_named_plugins
from astraflow.tools import tool_sources
from astraflow.tools.base import Tool, ToolError

Function = Callable[..., Awaitable[str]]

MAX_PROBLEMS = 5
"""Problems of the arguments of a call that the policy sees."""


@overload
def tool(function: Function) -> Tool: ...
@overload
def tool(*, timeout_s: float = ...) -> Callable[[Function], Tool]: ...
def tool(function: Function | None = None, *, timeout_s: float = 30.0) -> Tool | Callable[[Function], Tool]:
    """Makes a tool of an asynchronous function, whose name, docstring and annotated parameters the policy reads.

    Arguments are validated before the call. Raise `ToolError` for what the policy should see; every other exception
    fails the episode. Raises: InvalidInput for a function that is not asynchronous, has no docstring, or parameters
    without a JSON type.

    >>> @tool
    ... async def repeat(text: str, times: Annotated[int, Field(ge=1, le=9)] = 2) -> str:
    ...     "Repeats a text."
    ...     return text * times
    >>> repeat.name, sorted(repeat.parameters["properties"])
    ('repeat', ['text', 'times'])
    """
    if function is None:
        return lambda decorated: tool_of(decorated, timeout_s=timeout_s)
    return tool_of(function, timeout_s=timeout_s)


def tool_of(function: Function, *, timeout_s: float) -> Tool:
    """Returns the tool of a function. Raises: InvalidInput."""
    name = function.__name__
    if not inspect.iscoroutinefunction(function):
        raise _unusable(name, "it is not asynchronous; write `async def`")
    description = inspect.getdoc(function)
    if not description:
        raise _unusable(name, "it has no docstring; write one, the policy reads it")
    try:
        arguments: TypeAdapter[Any] = TypeAdapter(cast("Any", function))
        schema = arguments.json_schema()
    except (PydanticUserError, NameError) as problem:
        raise _unusable(name, f"a parameter has no JSON type ({problem}); annotate all with JSON types") from problem
    if schema.get("type") != "object":
        raise _unusable(name, "it has parameters without a name; let all be passable by name")

    async def call(values: Mapping[str, Json]) -> str:
        try:
            calling = arguments.validate_python(ArgsKwargs((), dict(values)))
        except ValidationError as problem:
            raise ToolError(_explained(problem), code="tool.invalid_arguments") from None
        return str(await calling)

    return Tool(name=name, description=description, parameters=_without_titles(schema), call=call, timeout_s=timeout_s)


class FunctionsOptions(Config):
    """Functions of a module."""

    functions: Annotated[tuple[str, ...], SettableBy.RECIPE] = Field(min_length=1)
    """Tools as `module:attribute`, in modules that `--plugin` or `ASTRAFLOW_PLUGINS` loads; an attribute is a function
    with the decorator `tool`, or a list of such functions."""


@tool_sources.register("functions", options=FunctionsOptions)
class Functions:
    """Tools that a module of yours defines with the decorator `tool`; they have no state per episode.

    A recipe only names tools in modules that are loaded already: it cannot make a process import code.
    """

    def __init__(self, options: FunctionsOptions) -> None:
        import_named_plugins()
        self._tools = tuple(function for entry in options.functions for function in _found(entry))

    @asynccontextmanager
    async def open(self, prompt: Prompt, seed: int) -> AsyncIterator[tuple[Tool, ...]]:
        """Provides the tools."""
        yield self._tools


def _found(entry: str) -> tuple[Tool, ...]:
    """Returns the tools at `module:attribute`. Raises: InvalidInput."""
    module, _, attribute = entry.partition(":")
    if module not in sys.modules:
        raise _not_found(entry, f"the module {module!r} is not loaded")
    value = getattr(sys.modules[module], attribute, None)
    tools = (value,) if isinstance(value, Tool) else tuple(value) if isinstance(value, list | tuple) else ()
    if not tools or not all(isinstance(item, Tool) for item in tools):
        raise _not_found(entry, "it is neither a function with the decorator `tool` nor a list of such")
    return tools


def _not_found(entry: str, cause: str) -> InvalidInput:
    return InvalidInput(
        f"cannot use {entry!r} as tools: {cause}; write module:attribute, and load the module with --plugin or "
        f"{PLUGINS_VARIABLE} in every process",
        code="tool.functions_not_found",
    )


def _unusable(name: str, cause: str) -> InvalidInput:
    return InvalidInput(f"cannot make a tool of {name!r}: {cause}", code="tool.unusable_function")


def _explained(problem: ValidationError) -> str:
    """Returns the problems of the arguments as text for the policy, without their values."""
    errors = problem.errors(include_url=False, include_input=False, include_context=False)
    lines = [f"{'.'.join(map(str, error['loc'])) or 'arguments'}: {error['msg']}"[:200] for error in errors]
    further = [f"and {len(lines) - MAX_PROBLEMS} more"] if len(lines) > MAX_PROBLEMS else []
    return "; ".join(["wrong arguments", *lines[:MAX_PROBLEMS], *further])


def _without_titles(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a JSON schema without the titles that pydantic derives from the names."""
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            result[key] = {name: _without_titles(inner) for name, inner in value.items()}
        elif isinstance(value, Mapping):
            result[key] = _without_titles(value)
        elif key != "title":
            result[key] = value
    return result
