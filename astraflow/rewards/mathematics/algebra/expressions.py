"""Expressions of numbers, letters and functions."""

import math
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
    return frozenset(part.name for part in parts_of(expression) if isinstance(part, Symbol))


def parts_of(expression: Expression) -> Iterator[Expression]:
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


MAX_BITS = 60_000
"""Largest numerator or denominator that is exact. Bits."""

_MAX_DEGREE = 64


def exact_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    """Returns a rational power; None if it is irrational or longer than `MAX_BITS`. Raises: ZeroDivisionError.

    >>> exact_power(Fraction(8), Fraction(-2, 3)), exact_power(Fraction(2), Fraction(1, 2))
    (Fraction(1, 4), None)
    """
    if base == 0:
        return 1 / base if exponent <= 0 else base
    if exponent.denominator != 1:
        root = exact_root(base, exponent.denominator) if base > 0 and exponent.denominator <= _MAX_DEGREE else None
        return None if root is None else exact_power(root, Fraction(exponent.numerator))
    if abs(base) == 1:
        return base if exponent % 2 else abs(base)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    return base ** int(exponent) if bits * abs(exponent) <= MAX_BITS else None


def exact_root(value: Fraction, degree: int) -> Fraction | None:
    """Returns the rational root of a number that is not negative, None if it is irrational."""
    over, under = _integer_root(value.numerator, degree), _integer_root(value.denominator, degree)
    return None if over is None or under is None else Fraction(over, under)


def _integer_root(value: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(value)
    elif value < 2:
        root = value
    else:
        root = 1 << -(-value.bit_length() // degree)
        while (smaller := ((degree - 1) * root + value // root ** (degree - 1)) // degree) < root:
            root = smaller
    return root if root**degree == value else None


def exact_logarithm(value: Fraction, base: Fraction) -> Fraction | None:
    """Returns the integer power of the base that is the value, None if there is none."""
    power, rest = 0, value if value >= 1 else 1 / value
    while rest >= base and power < 1000:
        rest, power = rest / base, power + 1
    return None if rest != 1 else Fraction(power if value >= 1 else -power)
