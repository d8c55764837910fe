"""Tools from functions, and the calculator."""

import ast
import math
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.recipe.files import EXAMPLES, PACKAGED
from astraflow.runtime.config.setting_permissions import SettableBy, settable_by
from astraflow.runtime.plugins import import_plugins
from astraflow.tools import tool_sources
from astraflow.tools.base import Tool, ToolError
from astraflow.tools.calculator import evaluated
from astraflow.tools.functions import FunctionsOptions, tool
from tests import make
from tests.errors import raises_code


@tool
async def search(
    query: str,
    top: Annotated[int, Field(ge=1, le=10, description="Number of results.")] = 5,
    sort: Literal["a", "b"] = "a",
) -> str:
    """Finds documents."""
    return f"{query} {top} {sort}"


@tool(timeout_s=5)
async def title(title: dict[str, list[int]]) -> str:
    """Takes an argument with the name of a schema keyword."""
    if not title:
        raise ToolError("there is no title", code="test.no_title")
    return str(title)


TOOLS = [search, title]


def test_name_description_and_schema_follow_from_the_function() -> None:
    assert (search.name, search.description, search.timeout_s, title.timeout_s) == ("search", "Finds documents.", 30, 5)
    assert search.parameters == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "query": {"type": "string"},
            "top": {"type": "integer", "minimum": 1, "maximum": 10, "default": 5, "description": "Number of results."},
            "sort": {"type": "string", "enum": ["a", "b"], "default": "a"},
        },
        "required": ["query"],
    }
    properties: Any = title.parameters["properties"]
    assert list(properties) == ["title"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"query": "x"}, ""),
        ({"query": "x", "top": "3"}, ""),
        ({}, "query"),
        ({"query": ["x"]}, "query"),
        ({"query": "x", "top": 99}, "top"),
        ({"query": "x", "sort": "c"}, "sort"),
        ({"query": "x", "bottom": 1}, "bottom"),
        ({f"name{index}": 1 for index in range(1000)}, "and 996 more"),
    ],
)
async def test_arguments_are_validated(arguments: Mapping[str, Any], problem: str) -> None:
    if not problem:
        assert (await search.call(arguments)).startswith("x ")
        return
    with raises_code(ToolError, "tool.invalid_arguments", problem) as caught:
        await search.call(arguments)
    assert len(str(caught.value)) < 1500


@pytest.mark.anyio
async def test_a_tool_error_keeps_its_text() -> None:
    with raises_code(ToolError, "test.no_title"):
        await title.call({"title": {}})


def test_functions_that_cannot_be_tools_are_refused() -> None:
    def blocking(text: str) -> str:
        """Does not wait."""
        return text

    async def undocumented(text: str) -> str:
        return text

    async def untyped(text: ast.AST) -> str:
        """Takes something that is no JSON."""
        return str(text)

    async def nameless(*texts: str) -> str:
        """Takes arguments without a name."""
        return "".join(texts)

    functions: tuple[Any, ...] = (blocking, undocumented, untyped, nameless)
    for function in functions:
        with raises_code(InvalidInput, "tool.unusable_function", function.__name__):
            tool(function)


async def opened(*functions: str) -> tuple[Tool, ...]:
    source = tool_sources.build({"kind": "functions", "functions": list(functions)})
    async with source.open(make.prompt(), 0) as tools:
        return tools


@pytest.mark.anyio
async def test_tools_are_found_by_module_and_attribute() -> None:
    assert [tool.name for tool in await opened(f"{__name__}:TOOLS", f"{__name__}:search")] == [
        "search", "title", "search",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "entry", ["astraflow", "tests.test_docs:x", f"{__name__}:missing", f"{__name__}:opened", f"{__name__}:", ":x", "x:"]
)
def test_other_objects_are_refused_as_tools(entry: str) -> None:
    with raises_code(InvalidInput, "tool.functions_not_found", entry):
        tool_sources.build({"kind": "functions", "functions": [entry]})


def test_only_a_recipe_names_functions_and_it_loads_no_module() -> None:
    assert settable_by(FunctionsOptions, ("functions",)) is SettableBy.RECIPE
    module = "antigravity"
    with raises_code(InvalidInput, "tool.functions_not_found"):
        tool_sources.build({"kind": "functions", "functions": [f"{module}:x"]})
    assert module not in sys.modules


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * -3", -9),
        ("7 // 2 + 7 % 4", 6),
        ("2 ^ 10", 1024),
        ("1 / 4", 0.25),
        ("max(3, min(5, 9), abs(-7))", 7),
        ("sqrt(2) ** 2", pytest.approx(2)),
        ("gcd(12, 18) + lcm(4, 6)", 18),
        ("round(2.5) + pi - pi", 2),
        ("log(e)", 1),
    ],
)
def test_the_calculator_calculates(expression: str, value: float) -> None:
    assert evaluated(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "", "a", "1 +", "True", "'a' * 9", "[1]", "(1).__class__", "__import__('os')", "abs", "pi()", "1; 2", "x = 1",
        "9 ** 9 ** 9 ** 9", "2 ** 100000", "(-8) ** 0.5", "1 / 0", "1e308 * 10", "10.0 ** 400", "log(0)", "gcd(0.5)",
        "max()", "min(1, key=abs)", "(" * 500,
        "1 if 1 else 2", "1 < 2", "1" * 1001, "lambda: 1", "1j * 1j", "\x00", "7 % 0",
    ],
)  # fmt: skip
def test_other_expressions_are_refused(expression: str) -> None:
    with raises_code(ToolError, "tool.not_calculable"):
        evaluated(expression)


_NUMBERS = st.integers(min_value=-(10**6), max_value=10**6)


@pytest.mark.long
@given(
    st.recursive(
        _NUMBERS.map(str),
        lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
        max_leaves=8,
    )
)
def test_sums_and_products_are_those_of_python(expression: str) -> None:
    assert evaluated(expression) == eval(expression, {})  # noqa: S307 (numbers and + - * only)


@pytest.mark.long
@given(st.text(alphabet="0123456789.+-*/%() sqrtlogexpie,", max_size=40))
def test_the_calculator_returns_a_finite_number_or_refuses(expression: str) -> None:
    try:
        assert math.isfinite(evaluated(expression))
    except ToolError:
        pass
    except OverflowError:
        assert isinstance(evaluated(expression), int)  # too large for a float, but whole


@pytest.mark.anyio
async def test_the_calculator_is_a_source_of_one_tool() -> None:
    async with tool_sources.build({"kind": "calculator"}).open(make.prompt(), 0) as (calculate,):
        assert (calculate.name, await calculate.call({"expression": "6*7"})) == ("calculate", "42")


@pytest.mark.anyio
async def test_the_tools_of_the_example_answer_and_refuse() -> None:
    import_plugins(str(PACKAGED / EXAMPLES / "own_tool.py"))
    population, words = await opened("own_tool:TOOLS")
    assert await population.call({"country": " Peru"}) == "34200000"
    with raises_code(ToolError, "own_tool.unknown_country"):
        await population.call({"country": "Atlantis"})
    assert await words.call({"text": "a ccc bb ccc", "longest": 2}) == "ccc, bb"
