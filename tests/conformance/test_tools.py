"""The check of tools finds what breaks the interface, and the built-in tools keep it."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import count
from typing import Annotated, Any

import pytest
from pydantic import Field

from astraflow.conformance.tools import ANSWERS, READABLE, REPEATS, WRONG_ARGUMENTS, check_tools
from astraflow.contract.plugins import Outcome
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.tools import tool_sources
from astraflow.tools.base import Tool, ToolError
from astraflow.tools.functions import tool
from tests import make

pytestmark = pytest.mark.anyio

COUNTS = count()


@tool
async def divide(dividend: float, divisor: float) -> str:
    """Divides two numbers."""
    return str(dividend / divisor)


@tool
async def careful(dividend: Annotated[int, Field(ge=0, le=9)], unit: str | None = None) -> str:
    """Divides ten by a number."""
    if not dividend:
        raise ToolError("divide by another number than 0", code="test.zero")
    return f"{10 // dividend} {unit}"


@tool
async def counter() -> str:
    """Returns another number each time."""
    return str(next(COUNTS))


async def returns_bytes(values: Mapping[str, Json]) -> Any:
    return b"bytes"


async def trusts(values: Mapping[str, Json]) -> str:
    return str(values["word"])


WORD: Mapping[str, Json] = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}


class Source:
    """Source of given tools."""

    def __init__(self, *tools: Tool) -> None:
        self._tools = tools

    def open(self, prompt: Prompt, seed: int) -> AbstractAsyncContextManager[tuple[Tool, ...]]:
        return nullcontext(self._tools)


@pytest.mark.parametrize(
    ("tools", "promise", "quoted"),
    [
        ((), READABLE, "no tools"),
        ((careful, careful), READABLE, "'careful'"),
        ((Tool(name="my tool", description="Reads.", parameters=WORD, call=trusts),), READABLE, "'my tool'"),
        ((Tool(name="read", description=" ", parameters=WORD, call=trusts),), READABLE, "no description"),
        (
            (
                Tool(
                    name="read",
                    description="Reads.",
                    parameters={"type": "object", "properties": {"word": {}}},
                    call=trusts,
                ),
            ),
            READABLE,
            "'word' of 'read' has no type",
        ),
        ((Tool(name="read", description="Reads.", parameters=WORD, call=trusts),), WRONG_ARGUMENTS, "KeyError"),
        ((divide,), ANSWERS, "ZeroDivisionError"),
        ((Tool(name="read", description="Reads.", parameters=WORD, call=returns_bytes),), ANSWERS, "bytes"),
        ((counter,), REPEATS, "counter"),
    ],
)
async def test_each_fault_breaks_its_promise(tools: tuple[Tool, ...], promise: str, quoted: str) -> None:
    (failed, *_) = [result for result in await check_tools(Source(*tools), make.prompt()) if result.promise == promise]
    assert failed.outcome is Outcome.FAILED and quoted in failed.detail


@pytest.mark.parametrize("spec", [{"kind": "calculator"}, {"kind": "search", "facts": {"entities": 50}}], ids=str)
async def test_built_in_tools_keep_the_promises(spec: dict[str, Any]) -> None:
    results = await check_tools(tool_sources.build(spec), make.prompt())
    assert [result for result in results if result.outcome is not Outcome.PASSED] == []


async def test_a_tool_that_refuses_what_the_policy_did_wrong_passes() -> None:
    results = await check_tools(Source(careful), make.prompt())
    assert [result.outcome for result in results] == [Outcome.PASSED] * 4
