r"""Comparison of two mathematical answers by their forms. The form of the correct answer decides what counts.

What is not understood is equal only word by word, so that a strange answer is wrong instead of accidentally right.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import TypeVar

from astraflow.rewards.mathematics.algebra.evaluation import Budget, Undefined
from astraflow.rewards.mathematics.algebra.expressions import Apply, Expression, Number, Symbol, letters_of, renamed
from astraflow.rewards.mathematics.algebra.identity import constant, is_identical, is_roughly, is_share
from astraflow.rewards.mathematics.equations import is_same_equation, is_same_inequality, is_sum_of_letters
from astraflow.rewards.mathematics.forms import (
    Based,
    Chain,
    Congruence,
    Form,
    Grouping,
    Items,
    Phrase,
    Quantity,
    Ratio,
    Table,
)
from astraflow.rewards.mathematics.phrases import is_same_choice, is_same_choices, labelled_choice
from astraflow.rewards.mathematics.ranges import is_same_set, letters_of_ranges, spans_of
from astraflow.rewards.mathematics.reading import read, readings, unit_reading
from astraflow.rewards.mathematics.spelling import bare
from astraflow.rewards.mathematics.units import Unit

_Item = TypeVar("_Item")

MAX_STEPS = 30_000
"""Operations of the comparison of two answers."""

_CLEAR_UNIT = re.compile(r"[a-zA-Z]{2}|m */ *s")
_TEXT_WORDS = re.compile(r"\\text\s*\{([A-Za-z -]+)\}")
_FUNCTION = re.compile(r"[a-zA-Z]\(x\)")
_CONSTANTS = frozenset("CcKk")
_VARIABLES = frozenset("stuxyz")
_UNORDERED = (Grouping.LIST, Grouping.SET)
_ORDERED = (Grouping.TUPLE, Grouping.VECTOR)


def is_equal(gold: str, answer: str, *, decimals: int) -> bool:
    r"""Returns whether an answer equals the correct one.

    decimals: places to which decimal numbers are compared.

    >>> [is_equal(*pair, decimals=6) for pair in ((r"\frac{1}{2}", "0.5"), ("10 cm", "10 km"), ("x+1", "1+x"))]
    [True, False, True]
    """
    words = _TEXT_WORDS.fullmatch(gold.strip())
    if words and bare(words[1]).lstrip("-\\frac{")[:1].isdigit():  # a correct answer in words is also one in digits
        gold = words[1] if bare(gold) != bare(answer) else gold
    if bare(gold) == bare(answer) or is_same_choice(gold, answer) or is_same_choices(gold, answer):
        return True
    (letter, text), (other, other_text) = labelled_choice(gold), labelled_choice(answer)
    if letter and not other and is_same_choice(f"({letter})", answer):
        return True
    if other:
        is_choice = letter == other if letter else not is_same_choice(gold, gold)
        return is_choice and _is_equal_text(text, other_text, decimals)
    return _is_equal_text(text, answer, decimals)


def _is_equal_text(gold: str, answer: str, decimals: int) -> bool:
    comparison = Comparison(decimals)
    try:
        return any(comparison.is_equal(left, right) for left, right in _pairs(gold, answer))
    except RecursionError:  # hundreds of operators in a row
        return False


def _pairs(gold: str, answer: str) -> Iterator[tuple[Form, Form]]:
    """Yields the forms that are compared; single letters in a plain text are a unit only if the correct answer has
    one, or if they are a speed or an acceleration."""
    yield from product(readings(gold), readings(answer))
    expected = read(gold)
    with_unit = unit_reading(answer) if isinstance(expected, Quantity) else None
    if with_unit is not None and (getattr(expected, "unit", None) is not None or _CLEAR_UNIT.search(answer)):
        yield expected, with_unit


class Comparison:
    """One comparison, with the operations that it may still do."""

    def __init__(self, decimals: int) -> None:
        self._decimals = decimals
        self._budget = Budget(MAX_STEPS)

    def is_equal(self, gold: Form, answer: Form) -> bool:
        """Returns whether two forms are equal."""
        gold, answer = _unwrapped(gold), _unwrapped(answer)
        if gold == answer:
            return True
        if isinstance(gold, Phrase) or isinstance(answer, Phrase):
            words = _words(gold)
            return bool(words) and words == _words(answer)
        if isinstance(gold, Chain) or isinstance(answer, Chain):
            return self._is_equal_chain(gold, answer)
        if isinstance(gold, Quantity) and isinstance(answer, Quantity):
            return self._is_equal_quantity(gold, answer)
        if isinstance(gold, Ratio) or isinstance(answer, Ratio):
            return self._is_equal_ratio(gold, answer)
        if isinstance(gold, Table) and isinstance(answer, Table):
            return self._is_equal_table(gold, answer)
        items, others = _items(gold), _items(answer)
        if items is not None and others is not None:
            return self._is_equal_items(items, others)
        if isinstance(gold, Congruence) and isinstance(answer, Congruence):
            return self._is_congruent(gold, answer)
        if isinstance(gold, Based):
            return isinstance(answer, Quantity) and answer.expression == Number(_integer(gold.digits))
        return self._is_same_range(gold, answer)

    def is_identical(self, gold: Expression, answer: Expression) -> bool:
        """Returns whether two expressions have the same value; letters that differ in font or choice only are equal."""
        names, others = letters_of(gold), letters_of(answer)
        vectors = {name.removeprefix("vector ") for name in names | others if name.startswith("vector ")}
        if vectors:
            fonts = {name: Symbol(f"vector {name}") for name in vectors}
            gold, answer = renamed(gold, fonts), renamed(answer, fonts)
        elif len(names - others) == 1 == len(others - names):
            (name,), (other,) = names - others, others - names
            if _is_constant(gold, name, other):
                answer = renamed(answer, {other: Symbol(name)})
        return is_identical(gold, answer, decimals=self._decimals, budget=self._budget)

    def _is_equal_chain(self, gold: Form, answer: Form) -> bool:
        if isinstance(gold, Chain) and isinstance(answer, Chain):
            return self._is_equal_chains(gold, answer)
        if isinstance(gold, Chain):
            value = _assigned(gold)
            return self._is_same_range(gold, answer) if value is None else self.is_equal(value, answer)
        return isinstance(answer, Chain) and self._states(answer, gold)

    def _is_equal_chains(self, gold: Chain, answer: Chain) -> bool:
        if set(gold.operators) == {"="} == set(answer.operators):
            value, other = _assigned(gold), _assigned(answer)
            if value is not None and other is not None and _is_same_name(_name_of(gold), _name_of(answer)):
                return self.is_equal(value, other)
            return is_same_equation(gold, answer, self.is_identical)
        if self._is_same_range(gold, answer):
            return True
        return is_same_inequality(gold, answer, self.is_identical)

    def _states(self, chain: Chain, gold: Form) -> bool:
        """Returns whether relations state the correct answer: a name or equal values before it, rounded ones behind."""
        if not set(chain.operators) <= {"=", "~"}:
            return self._is_same_range(gold, chain)
        is_number = isinstance(gold, Quantity) and not letters_of(gold.expression)
        begin = int(_is_named(chain, 0) or (is_number and is_sum_of_letters(chain.sides[0])))
        sides = chain.sides[begin:]
        if begin == 0 and len(sides) == 2 and _is_named(chain, 1):
            return self.is_equal(gold, sides[0])
        for left, right, operator in zip(sides, sides[1:], chain.operators[begin:], strict=False):
            if operator == "=" and not self.is_equal(left, right):
                return False
            if operator == "~" and not _is_rounded(left, right):
                return False
        return any(self.is_equal(gold, side) for side in (sides[-1], sides[0]))

    def _is_equal_quantity(self, gold: Quantity, answer: Quantity) -> bool:
        expression, other = gold.expression, answer.expression
        unit, other_unit = gold.unit, answer.unit
        if unit is not None and other_unit is not None:
            if not _is_same_dimension(unit, other_unit):
                return False
            if unit.factor != other_unit.factor:
                other = Apply("*", (Number(other_unit.factor / unit.factor), other))
            return self.is_identical(expression, other)
        if not (other_unit is not None and other_unit.is_percent and is_share(expression)) and self.is_identical(
            expression, other
        ):
            return True
        variants = _variants(unit, expression), _variants(other_unit, other)
        return any(self.is_identical(left, right) for left in variants[0] for right in variants[1])

    def _is_equal_ratio(self, gold: Form, answer: Form) -> bool:
        if isinstance(gold, Quantity) and isinstance(answer, Ratio):
            return self._is_equal_ratio(answer, gold)
        if not isinstance(gold, Ratio):
            return False
        if isinstance(answer, Quantity):
            over, under = gold.parts[0], gold.parts[-1]
            if not (isinstance(over, Quantity) and isinstance(under, Quantity)):
                return False
            if gold.is_time:
                is_full = gold.unit is not None and gold.unit == answer.unit and under == Quantity(Number(Fraction(0)))
                return is_full and self.is_equal(over, Quantity(answer.expression))
            is_fraction = isinstance(answer.expression, Apply) and answer.expression.function == "/"
            value = Apply("/", (over.expression, under.expression))
            return len(gold.parts) == 2 and is_fraction and self.is_identical(value, answer.expression)
        if not isinstance(answer, Ratio) or len(gold.parts) != len(answer.parts):
            return False
        if None not in (gold.unit, answer.unit) and gold.unit != answer.unit:
            return False
        if gold.is_time:
            return self._is_equal_each(gold.parts, answer.parts)
        return self._is_proportional(gold.parts, answer.parts)

    def _is_proportional(self, parts: Sequence[Form], others: Sequence[Form]) -> bool:
        values = [part.expression for part in (*parts, *others) if isinstance(part, Quantity)]
        left, right = values[: len(parts)], values[len(parts) :]
        return all(
            self.is_identical(Apply("*", (value, right[0])), Apply("*", (other, left[0])))
            for value, other in zip(left, right, strict=True)
        )

    def _is_equal_table(self, gold: Table, answer: Table) -> bool:
        shapes = [[len(row) for row in table.rows] for table in (gold, answer)]
        if gold.is_matrix != answer.is_matrix or sorted(shapes[0]) != sorted(shapes[1]):
            return False
        if gold.is_matrix:
            return shapes[0] == shapes[1] and all(map(self._is_equal_each, gold.rows, answer.rows))
        return _is_matched(gold.rows, answer.rows, self._is_equal_each, is_set=False)

    def _is_equal_items(self, gold: Items, answer: Items) -> bool:
        grouping, other = gold.grouping, answer.grouping
        if grouping in _UNORDERED and other in _UNORDERED and not gold.goes_on and not _has_lost_names(gold, answer):
            return _is_matched(gold.items, answer.items, self.is_equal, is_set=Grouping.SET in (grouping, other))
        is_interval = Grouping.INTERVAL in (grouping, other)
        if Grouping.SET in (grouping, other) or (is_interval and gold.brackets != answer.brackets):
            return False
        if Grouping.LIST in (grouping, other):
            return self._is_equal_each(_values(gold.items), _values(answer.items))
        return self._is_equal_each(gold.items, answer.items)

    def _is_equal_each(self, items: Sequence[Form], others: Sequence[Form]) -> bool:
        return len(items) == len(others) and all(map(self.is_equal, items, others))

    def _is_congruent(self, gold: Congruence, answer: Congruence) -> bool:
        if None not in (gold.left, answer.left) and gold.left != answer.left:
            return False
        if not self.is_equal(gold.modulus, answer.modulus):
            return False
        return self.is_equal(gold.right, answer.right) or _is_multiple(gold.right, answer.right, gold.modulus)

    def _is_same_range(self, gold: Form, answer: Form) -> bool:
        spans, others = spans_of(gold), spans_of(answer)
        if spans is None or others is None or not is_same_set(spans, others):
            return False
        letters, other_letters = letters_of_ranges(gold), letters_of_ranges(answer)
        return not letters or not other_letters or letters == other_letters


def _is_constant(gold: Expression, name: str, other: str) -> bool:
    """Returns whether a letter of the correct answer, which the answer spells as another one, is a constant of
    integration: a capital C, or a small one that is added to terms of variables."""
    if name.startswith("C"):
        return name.casefold() == other.casefold() or {name, other} <= _CONSTANTS
    is_added = isinstance(gold, Apply) and gold.function == "+" and Symbol(name) in gold.arguments
    return other == name.upper() and name in _CONSTANTS and is_added and letters_of(gold) - {name} <= _VARIABLES


def _unwrapped(form: Form) -> Form:
    """Returns the only item of a set."""
    if isinstance(form, Items) and form.grouping in _UNORDERED and len(form.items) == 1:
        item = form.items[0]
        return form if isinstance(item, Items) and item.grouping is Grouping.SET else item
    return form


def _items(form: Form) -> Items | None:
    """Returns items, also of a column of a matrix as a vector."""
    if isinstance(form, Table) and form.is_matrix and all(len(row) == 1 for row in form.rows):
        return Items(Grouping.VECTOR, tuple(row[0] for row in form.rows))
    return form if isinstance(form, Items) else None


def _has_lost_names(gold: Items, answer: Items) -> bool:
    """Returns whether values of different letters are given without them: their order then says which is which."""
    names = {_name_of(item) for item in gold.items if isinstance(item, Chain)}
    return len(names) > 1 and not any(isinstance(item, Chain) for item in answer.items)


def _values(items: Sequence[Form]) -> list[Form]:
    """Returns the values of assignments such as `x = 1`."""
    return [(_assigned(item) or item) if isinstance(item, Chain) else item for item in items]


def _words(form: Form) -> tuple[str, ...]:
    """Returns the words of a phrase, or of a list of phrases; none for another form."""
    if isinstance(form, Items) and form.grouping is Grouping.LIST:
        return tuple(word for item in form.items for word in (_words(item) or ("",)))
    return form.words if isinstance(form, Phrase) else ()


def _is_same_name(name: str, other: str) -> bool:
    """Returns whether two names are equal, or y and the value of a function of x."""
    return name == other or ("y" in (name, other) and any(map(_FUNCTION.fullmatch, (name, other))))


def _name_of(chain: Chain) -> str:
    return chain.names[0] or chain.names[-1]


def _assigned(chain: Chain) -> Form | None:
    """Returns the value that equations give to a name, or that all sides have; None for an equation with unknowns."""
    if set(chain.operators) != {"="}:
        return None
    if _is_named(chain, 0):
        value = chain.sides[-1]
    elif _is_named(chain, -1) and len(chain.sides) == 2:
        value = chain.sides[0]
    elif any(isinstance(side, Quantity) and letters_of(side.expression) for side in chain.sides):
        return None
    else:
        return chain.sides[-1]
    is_equation = isinstance(value, Quantity) and _name_of(chain) in letters_of(value.expression)
    return None if is_equation else value


def _is_named(chain: Chain, at: int) -> bool:
    """Returns whether a side is a name: a letter, a function or a word, or capital letters such as those of a line."""
    name, side = chain.names[at], chain.sides[at]
    is_product = isinstance(side, Quantity) and isinstance(side.expression, Apply)
    return bool(name) and not (is_product and name.isalpha() and not name.isupper())


def _variants(unit: Unit | None, expression: Expression) -> list[Expression]:
    """Returns a percentage or an angle as a plain number, or the expression itself."""
    if unit is not None and unit.is_percent:
        return [Apply("/", (expression, Number(Fraction(100))))]
    return [Apply("degree", (expression,))] if unit is not None and unit.is_angle else [expression]


def _is_same_dimension(unit: Unit, other: Unit) -> bool:
    """Returns whether units measure the same; of two unknown ones, one may say more than the other."""
    if unit.powers == other.powers:
        return True
    if unit.is_known or other.is_known or unit.factor != 1 or other.factor != 1:
        return False
    names, others = dict(unit.powers), dict(other.powers)
    return names.items() <= others.items() or others.items() <= names.items()


def _is_rounded(left: Form, right: Form) -> bool:
    """Returns whether the right side is a rounded value of the left one."""
    if not (isinstance(left, Quantity) and isinstance(right, Quantity)):
        return False
    return is_roughly(left.expression, right.expression)


def _is_multiple(right: Form, other: Form, modulus: Form) -> bool:
    """Returns whether the difference of two integers is a multiple of a third."""
    forms = (right, other, modulus)
    if not all(isinstance(form, Quantity) for form in forms):
        return False
    try:
        values = [constant(form.expression)[1] for form in forms if isinstance(form, Quantity)]
    except Undefined:
        return False
    integers = [value for value in values if isinstance(value, Fraction) and value.denominator == 1]
    return len(integers) == 3 and integers[2] != 0 and (integers[0] - integers[1]) % integers[2] == 0


def _integer(digits: str) -> Fraction:
    return Fraction(int(digits)) if digits.isdecimal() else Fraction(-1)


def _is_matched(
    items: Sequence[_Item], others: Sequence[_Item], is_equal: Callable[[_Item, _Item], bool], *, is_set: bool
) -> bool:
    """Returns whether each item has an equal one on the other side; without `is_set` one of its own."""
    if is_set:
        return all(any(is_equal(item, other) for other in others) for item in items) and all(
            any(is_equal(item, other) for item in items) for other in others
        )
    left = list(others)
    for item in items:
        match = next((at for at, other in enumerate(left) if is_equal(item, other)), None)
        if match is None:
            return False
        del left[match]
    return not left
