"""Equality of expressions: exact for rational numbers, by many digits for others, at points for those with letters.

Two expressions with letters are equal if their values are at each of some random points where both are defined. A
difference that vanishes at random points of a hundred digits, and at no other, does not occur by chance.
"""

import random
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from astraflow.rewards.mathematics.algebra.evaluation import Budget, Evaluator, Undefined, Value
from astraflow.rewards.mathematics.algebra.expressions import Apply, Expression, Number, letters_of

DIGITS = (50, 120)
"""Decimal digits of the first and of the deciding evaluation."""

_MAX_PLACES = 60
"""Longest numerator or denominator in a text that equal numbers share. Digits."""

_CONSTANT_STEPS = 1000
_MIN_POINTS = 3
"""Points at which both expressions must be defined."""
_POINTS = 20


def is_identical(gold: Expression, answer: Expression, *, decimals: int, budget: Budget | None = None) -> bool:
    """Returns whether two expressions have the same value.

    decimals: places to which a decimal number is compared; below 1 they count from its first digit.
    """
    if gold == answer:
        return True
    budget = budget or Budget()
    letters = (letters_of(gold) | letters_of(answer)) - {"i"}
    if letters:
        return _is_same_function(gold, answer, letters, budget)
    try:
        if decimal_of(gold) is not None or decimal_of(answer) is not None:
            return _is_near(gold, answer, decimals, budget)
        return _is_same(gold, answer, {}, budget, has_complex=True)
    except Undefined:
        return False


def decimal_of(expression: Expression) -> Fraction | None:
    """Returns the value of a decimal number, which may be rounded; None for every other expression.

    A power of ten may follow it, as in scientific notation.
    """
    if isinstance(expression, Number):
        return expression.value if expression.is_decimal else None
    if isinstance(expression, Apply) and expression.function == "neg":
        value = decimal_of(expression.arguments[0])
        return None if value is None else -value
    if isinstance(expression, Apply) and expression.function == "*":
        left, right = expression.arguments
        value, power = decimal_of(left), _power_of_ten(right)
        return None if value is None or power is None else value * power
    return None


def _power_of_ten(expression: Expression) -> Fraction | None:
    if not (isinstance(expression, Apply) and expression.function == "^"):
        return None
    base, exponent = expression.arguments
    sign = 1
    if isinstance(exponent, Apply) and exponent.function == "neg":
        sign, exponent = -1, exponent.arguments[0]
    if not (isinstance(base, Number) and base.value == 10 and isinstance(exponent, Number)):
        return None
    is_small = exponent.value.denominator == 1 and abs(exponent.value) <= 2000
    return Fraction(10) ** int(sign * exponent.value) if is_small else None


def constant(expression: Expression) -> tuple[Evaluator, Value]:
    """Returns the real value of an expression without letters, with the evaluator. Raises: Undefined."""
    evaluator = Evaluator(DIGITS[0], {}, Budget(_CONSTANT_STEPS), has_complex=False)
    return evaluator, evaluator.value(expression)


def is_roughly(expression: Expression, other: Expression) -> bool:
    """Returns whether two expressions differ by at most a hundredth."""
    try:
        evaluator, value = constant(expression)
        return bool(evaluator.difference(value, constant(other)[1]) * 100 <= evaluator.size(value))
    except Undefined:
        return False


def is_share(expression: Expression) -> bool:
    """Returns whether a number is between -1 and 1: a percentage of it is not the number before its sign."""
    try:
        evaluator, value = constant(expression)
        return bool(0 < evaluator.size(value) < 1)
    except Undefined:
        return False


def canonical(expression: Expression, budget: Budget) -> str | None:
    """Returns a text that equal expressions share: a fraction, digits, or values at two points; None without a value.

    >>> from astraflow.rewards.mathematics.algebra.parser import parse
    >>> from astraflow.rewards.mathematics.tokens import tokens_of
    >>> [canonical(parse(tokens_of(text)), Budget()) for text in ("0.5", "2^{1/2}")]
    ['1/2', '1.4142135623730950488']
    """
    letters = letters_of(expression) - {"i"}
    values = []
    for letter_values in _points(letters, 2) if letters else ({},):
        evaluator = Evaluator(DIGITS[0], letter_values, budget, has_complex=True)
        try:
            value = evaluator.value(expression)
        except Undefined:
            return None
        is_short = isinstance(value, Fraction) and max(abs(value.numerator), value.denominator) < 10**_MAX_PLACES
        values.append(str(value) if is_short and not letters else evaluator.digits_of(value, 20))
    return ", ".join(values) if not letters else f"f({', '.join(sorted(letters))}) = {'; '.join(values)}"


def _is_near(gold: Expression, answer: Expression, decimals: int, budget: Budget) -> bool:
    """Compares with a decimal number: equal to half a unit of the last place that is compared."""
    evaluator = Evaluator(DIGITS[0], {}, budget, has_complex=False)
    expected, answered = evaluator.value(gold), evaluator.value(answer)
    if expected == answered:
        return True
    if expected == 0:
        return False
    places = decimals + max(0, -evaluator.magnitude(expected) - 1)
    return bool(evaluator.difference(expected, answered) * 10**places * 2 <= 1)


def _is_same_function(gold: Expression, answer: Expression, letters: frozenset[str], budget: Budget) -> bool:
    has_complex = "i" in letters_of(gold) | letters_of(answer)
    defined = 0
    for values in _points(letters, _POINTS):
        try:
            if not _is_same(gold, answer, values, budget, has_complex=has_complex):
                return False
            defined += 1
        except Undefined:
            continue
    return defined >= _MIN_POINTS


def _is_same(
    gold: Expression, answer: Expression, values: Mapping[str, Fraction], budget: Budget, *, has_complex: bool
) -> bool:
    """Compares at one point. A difference that shrinks with the number of digits is one of rounding."""
    differences: list[tuple[Any, Any]] = []
    for digits in DIGITS:
        evaluator = Evaluator(digits, values, budget, has_complex=has_complex)
        left, right = evaluator.value(gold), evaluator.value(answer)
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            return left == right
        difference, size = evaluator.difference(left, right), max(evaluator.size(left), evaluator.size(right))
        if not differences and difference * 10**15 > size and size * 10**20 > 1:
            return False
        differences.append((difference, size))
    (first, _), (second, size) = differences
    return bool(second * 10 ** (DIGITS[0] + 10) <= size or second * 10 ** (DIGITS[0] - 10) <= first)


@lru_cache(maxsize=64)
def _point(letters: frozenset[str], ordinal: int) -> dict[str, Fraction]:
    values = {}
    for letter in letters:
        chance = random.Random(f"{letter!a} {ordinal}")
        whole, part = chance.randint(2, 12), Fraction(chance.randint(101, 989), 1000 + 2 * chance.randint(0, 40) + 1)
        values[letter] = (Fraction(whole), part, -(whole % 4) - part, Fraction(6 * whole), whole % 4 + 1 + part)[
            ordinal % 5
        ]
    return values


def _points(letters: frozenset[str], count: int) -> Iterator[dict[str, Fraction]]:
    """Yields values of the letters: integers, small, negative and positive numbers, and multiples of 6, in turn."""
    for ordinal in range(count):
        yield _point(letters, ordinal + 1)
