"""Expressions of numbers, letters and functions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Number:
    """A rational number."""

    value: Fraction
    is_decimal: bool = False
    """True for a decimal number, which may be rounded."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A letter, with its index if it has one, or the value of an unknown function."""

    name: str


@dataclass(frozen=True, slots=True)
class Apply:
    """A function of expressions."""

    function: str
    arguments: tuple["Expression", ...]


Expression: TypeAlias = Number | Symbol | Apply


def letters_of(expression: Expression) -> frozenset[str]:
    """Returns the names of the letters in an expression."""
    return frozenset(part.name for part in parts_of(expression) if isinstance(part, Symbol))


def parts_of(expression: Expression) -> Iterator[Expression]:
    """Yields an expression and all its parts."""
    stack = [expression]
    while stack:
        part = stack.pop()
        yield part
        if isinstance(part, Apply):
            stack.extend(part.arguments)


def replaced(expression: Expression, function: str, operator: str, other: str) -> Expression:
    """Returns an expression with `function` in place of the function `operator`, whose opposite is `other`."""
    if not isinstance(expression, Apply):
        return expression
    name = {operator: function, other: "-" if function == "+" else "+"}.get(expression.function, expression.function)
    return Apply(name, tuple(replaced(argument, function, operator, other) for argument in expression.arguments))


def renamed(expression: Expression, names: Mapping[str, Expression]) -> Expression:
    """Returns an expression with other expressions in place of letters."""
    if isinstance(expression, Symbol):
        return names.get(expression.name, expression)
    if isinstance(expression, Number):
        return expression
    return Apply(expression.function, tuple(renamed(argument, names) for argument in expression.arguments))
