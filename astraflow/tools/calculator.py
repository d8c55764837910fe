"""Calculator: arithmetic of bounded size, without the evaluation of code."""

import ast
import math
import operator
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated

from pydantic import Field

from astraflow.contract.rollouts.tasks import Prompt
from astraflow.runtime.config.base import Config
from astraflow.tools import tool_sources
from astraflow.tools.base import Tool, ToolError
from astraflow.tools.functions import tool

MAX_CHARACTERS = 1000
MAX_BITS = 4096
"""Size of a whole number. Bits."""

Number = int | float

_BINARY: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "abs": abs,
    "min": min,
    "max": max,
    "round": round,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "gcd": math.gcd,
    "lcm": math.lcm,
}
_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e}


class CalculatorOptions(Config):
    """No options."""


@tool_sources.register("calculator", options=CalculatorOptions)
class Calculator:
    """One tool `calculate`, for numbers, + - * / // % **, brackets, pi, e, and common functions."""

    def __init__(self, options: CalculatorOptions) -> None:
        pass

    @asynccontextmanager
    async def open(self, prompt: Prompt, seed: int) -> AsyncIterator[tuple[Tool, ...]]:
        """Provides the tool."""
        yield (calculate,)


@tool
async def calculate(
    expression: Annotated[str, Field(description="Expression, such as (3 + 4) * 2 ** 10 or sqrt(2) / 3.")],
) -> str:
    """Calculates an arithmetic expression: + - * / // % **, brackets, pi, e, abs, min, max, round, sqrt, exp, log, sin,
    cos, tan, gcd, lcm."""
    return str(evaluated(expression))


def evaluated(expression: str) -> Number:
    """Returns the value of an expression. Raises: ToolError.

    >>> evaluated("(3 + 4) * 2 ** 3")
    56
    """
    if len(expression) > MAX_CHARACTERS:
        raise _refusal(f"the expression is longer than {MAX_CHARACTERS} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about literals such as `1if`
            body = ast.parse(expression.strip().replace("^", "**"), mode="eval").body
        return _bounded(_value(body))
    except (SyntaxError, RecursionError, MemoryError):
        raise _refusal("it is no arithmetic expression") from None
    except (ValueError, ArithmeticError, TypeError) as problem:
        raise _refusal(str(problem)) from None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
            return _UNARY[type(sign)](_value(operand))
        case ast.BinOp(left=left, op=symbol, right=right) if type(symbol) in _BINARY:
            return _bounded(_combined(type(symbol), _value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*map(_value, arguments)))
    raise _refusal("it has a part that is no number, operator or known function")


def _combined(symbol: type[ast.operator], left: Number, right: Number) -> Number:
    is_whole = isinstance(left, int) and isinstance(right, int)
    if symbol is ast.Pow and is_whole and int(left).bit_length() * abs(right) > MAX_BITS:
        raise _refusal("the power is too large")
    return _BINARY[symbol](left, right)


def _bounded(value: object) -> Number:
    if isinstance(value, int) and value.bit_length() <= MAX_BITS:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise _refusal("the result is no real number, or too large")


def _refusal(cause: str) -> ToolError:
    return ToolError(f"cannot calculate: {cause}", code="tool.not_calculable")
