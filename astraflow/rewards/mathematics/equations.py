"""Equality of equations and of inequalities with letters."""

from collections.abc import Callable, Sequence
from fractions import Fraction

from astraflow.rewards.mathematics.algebra.expressions import (
    Apply,
    Expression,
    Number,
    Symbol,
    letters_of,
    parts_of,
    renamed,
)
from astraflow.rewards.mathematics.forms import Chain, Form, Quantity

Identity = Callable[[Expression, Expression], bool]

_ZERO = Number(Fraction(0))


def is_same_equation(gold: Chain, answer: Chain, is_identical: Identity) -> bool:
    """Returns whether two equations have the same solutions, as far as can be told without solving them.

    They do if the differences of their sides are in a constant ratio, or if one is solved for a letter in which the
    other is linear.
    """
    left, right = _differences(gold), _differences(answer)
    if left is None or right is None or len(left) != 1 or len(right) != 1:
        return False
    difference, other = left[0][0], right[0][0]
    if _is_multiple(difference, other, is_identical):
        return True
    return _solves(answer, difference, is_identical) or _solves(gold, other, is_identical)


def is_same_inequality(gold: Chain, answer: Chain, is_identical: Identity) -> bool:
    """Returns whether two chains state the same inequalities, each up to a positive factor."""
    left, right = _differences(gold), _differences(answer)
    if left is None or right is None or len(left) != len(right):
        return False
    rest = list(right)
    for difference, operator in left:
        match = next((pair for pair in rest if _is_same_pair(difference, operator, pair, is_identical)), None)
        if match is None:
            return False
        rest.remove(match)
    return True


def _is_same_pair(difference: Expression, operator: str, pair: tuple[Expression, str], is_identical: Identity) -> bool:
    other, other_operator = pair
    if operator != other_operator or not _is_multiple(difference, other, is_identical):
        return False
    left = Apply("*", (Apply("abs", (difference,)), other))
    right = Apply("*", (difference, Apply("abs", (other,))))
    return operator in ("=", "!=") or is_identical(left, right)


def _differences(chain: Chain) -> list[tuple[Expression, str]] | None:
    """Returns left minus right side of each relation; a relation with > is turned round."""
    sides = [side.expression for side in chain.sides if isinstance(side, Quantity) and side.unit is None]
    if len(sides) != len(chain.sides) or not set(chain.operators) <= {"=", "<", "<=", ">", ">=", "!="}:
        return None
    pairs: list[tuple[Expression, str]] = []
    for left, right, operator in zip(sides, sides[1:], chain.operators, strict=False):
        is_turned = operator.startswith(">")
        difference = Apply("-", (right, left)) if is_turned else Apply("-", (left, right))
        pairs.append((difference, operator.replace(">", "<")))
    return pairs


def _is_multiple(difference: Expression, other: Expression, is_identical: Identity) -> bool:
    """Returns whether two expressions with letters are in a constant ratio: f(p) g(q) = f(q) g(p) for all p and q."""
    letters = letters_of(difference) | letters_of(other)
    if not letters or is_identical(difference, _ZERO) or is_identical(other, _ZERO):
        return False
    elsewhere = {letter: Symbol(f"{letter} elsewhere") for letter in letters}
    left = Apply("*", (difference, renamed(other, elsewhere)))
    right = Apply("*", (renamed(difference, elsewhere), other))
    return is_identical(left, right)


def _solves(solution: Chain, difference: Expression, is_identical: Identity) -> bool:
    """Returns whether an equation is solved for a letter, and solves one that is linear in it."""
    for side, value in _isolated(solution):
        at = [renamed(difference, {side.name: Number(Fraction(value_at))}) for value_at in range(3)]
        slope = Apply("-", (at[1], at[0]))
        is_linear = is_identical(slope, Apply("-", (at[2], at[1]))) and not is_identical(slope, _ZERO)
        if is_linear and is_identical(renamed(difference, {side.name: value}), _ZERO):
            return True
    return False


def _isolated(chain: Chain) -> Sequence[tuple[Symbol, Expression]]:
    """Returns the letters that stand alone on one side, with the other side."""
    sides = [side.expression for side in chain.sides if isinstance(side, Quantity)]
    pairs = [(sides[0], sides[1]), (sides[1], sides[0])] if len(sides) == 2 else []
    return [(left, right) for left, right in pairs if isinstance(left, Symbol) and left.name not in letters_of(right)]


def is_sum_of_letters(form: Form) -> bool:
    """Returns whether a side of an equation is a sum such as m + n or 10a + b, whose value the other side states."""
    if not isinstance(form, Quantity) or form.unit is not None or len(letters_of(form.expression)) < 2:
        return False
    parts = [part for part in parts_of(form.expression) if isinstance(part, Apply)]
    return all(
        part.function in ("+", "-", "neg") or (part.function == "*" and len(letters_of(part)) == 1) for part in parts
    )
