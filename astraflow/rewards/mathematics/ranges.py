"""Sets of real numbers as disjoint spans: intervals, unions, and inequalities in one letter."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from astraflow.rewards.mathematics.algebra.evaluation import Undefined
from astraflow.rewards.mathematics.algebra.expressions import Apply, Expression
from astraflow.rewards.mathematics.algebra.identity import constant
from astraflow.rewards.mathematics.forms import Chain, Form, Grouping, Intersection, Items, Quantity, Reals, Union

BOUND = "bound"
"""Name of the letter of a set such as `{x | x > 2}`, which may be any."""

_SAME_DIGITS = 30
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}


@dataclass(frozen=True, slots=True)
class Span:
    """Numbers between two ends; an infinite end is an infinity of mpmath."""

    low: Any
    high: Any
    has_low: bool
    has_high: bool

    @property
    def is_empty(self) -> bool:
        """True if no number is in it."""
        return bool(self.low > self.high or (self.low == self.high and not (self.has_low and self.has_high)))


def spans_of(form: Form) -> tuple[Span, ...] | None:
    """Returns the sorted disjoint spans of a form, None if it is no set of real numbers with known ends."""
    try:
        spans = _spans(form)
    except Undefined:
        return None
    return None if spans is None else _merged(spans)


def is_same_set(spans: Sequence[Span], others: Sequence[Span]) -> bool:
    """Returns whether two sets of numbers are equal."""
    return len(spans) == len(others) and all(
        _is_near(span.low, other.low)
        and _is_near(span.high, other.high)
        and (span.has_low, span.has_high) == (other.has_low, other.has_high)
        for span, other in zip(spans, others, strict=True)
    )


def letters_of_ranges(form: Form) -> frozenset[str]:
    """Returns the letters that inequalities bound."""
    if isinstance(form, Chain):
        return frozenset(name for name in form.names if name) - {BOUND}
    if isinstance(form, Union | Intersection):
        return frozenset().union(*map(letters_of_ranges, form.parts))
    return frozenset()


def _spans(form: Form) -> list[Span] | None:
    if isinstance(form, Reals):
        return _without(form)
    if isinstance(form, Union):
        parts = [_spans(part) for part in form.parts]
        return [span for part in parts for span in part or []] if None not in parts else None
    if isinstance(form, Intersection):
        sets = [_spans(part) for part in form.parts]
        known = [part for part in sets if part is not None]
        common = _intersection(known) if len(known) == len(sets) else None
        is_alternative = form.is_listed and common == []
        return [span for part in known for span in part] if is_alternative else common
    if isinstance(form, Chain):
        return _of_inequalities(form)
    if isinstance(form, Items) and form.grouping is Grouping.SET:
        points = [_end(item) for item in form.items]
        return [Span(point, point, True, True) for point in points]
    if isinstance(form, Items) and form.brackets and len(form.items) == 2:
        low, high = map(_end, form.items)
        if not low < high:
            return None  # a pair of numbers
        return [Span(low, high, form.brackets[0] == "[", form.brackets[1] == "]")]
    return None


def _without(form: Reals) -> list[Span] | None:
    removed = _spans(form.removed) if form.removed is not None else []
    if removed is None:
        return None
    spans, low, has_low = [], _infinity(-1), False
    for span in _merged(removed):
        spans.append(Span(low, span.low, has_low, not span.has_low))
        low, has_low = span.high, not span.has_high
    return [*spans, Span(low, _infinity(1), has_low, False)]


def _of_inequalities(chain: Chain) -> list[Span] | None:
    """Returns the numbers for which inequalities of one letter and constants hold."""
    places = [at for at, name in enumerate(chain.names) if name]
    if len(places) != 1 or len(chain.sides) > 3 or not set(chain.operators) <= _FLIPPED.keys():
        return None
    at = places[0]
    if len(chain.sides) == 3 and at != 1:
        return None
    sets = []
    for ordinal, operator in enumerate(chain.operators):
        other = chain.sides[ordinal + 1] if ordinal == at else chain.sides[ordinal]
        sets.append(_half(_end(other), operator if ordinal == at else _FLIPPED[operator]))
    return _intersection(sets)


def _half(end: Any, operator: str) -> list[Span]:
    below = Span(_infinity(-1), end, False, operator == "<=")
    above = Span(end, _infinity(1), operator == ">=", False)
    return [below, above] if operator == "!=" else [below if operator.startswith("<") else above]


def _intersection(sets: Sequence[Sequence[Span]]) -> list[Span]:
    common = [Span(_infinity(-1), _infinity(1), False, False)]
    for spans in sets:
        common = [_common(span, other) for span in common for other in spans]
    return [span for span in common if not span.is_empty]


def _common(span: Span, other: Span) -> Span:
    low, high = max(span.low, other.low), min(span.high, other.high)
    return Span(
        low,
        high,
        all(part.has_low for part in (span, other) if part.low == low),
        all(part.has_high for part in (span, other) if part.high == high),
    )


def _merged(spans: Sequence[Span]) -> tuple[Span, ...]:
    merged: list[Span] = []
    for span in sorted((span for span in spans if not span.is_empty), key=lambda span: (span.low, not span.has_low)):
        last = merged[-1] if merged else None
        if last is None or span.low > last.high or (span.low == last.high and not (span.has_low or last.has_high)):
            merged.append(span)
        elif span.high > last.high:
            merged[-1] = replace(last, high=span.high, has_high=span.has_high)
        elif span.high == last.high:
            merged[-1] = replace(last, has_high=last.has_high or span.has_high)
    return tuple(merged)


def _end(form: Form) -> Any:
    """Returns the value of an end. Raises: Undefined when it is no constant."""
    if not isinstance(form, Quantity):
        raise Undefined
    sign = _infinite_sign(form.expression)
    if sign:
        return _infinity(sign)
    evaluator, value = constant(form.expression)
    return evaluator.number(value)


def _infinite_sign(expression: Expression) -> int:
    if isinstance(expression, Apply) and expression.function == "infty":
        return 1
    if isinstance(expression, Apply) and expression.function in ("neg", "pos"):
        return -_infinite_sign(expression.arguments[0])
    return 0


def _infinity(sign: int) -> Any:
    return sign * float("inf")


def _is_near(left: Any, right: Any) -> bool:
    if left == right:
        return True
    size = max(abs(left), abs(right))
    return bool(size != _infinity(1) and abs(left - right) * 10**_SAME_DIGITS <= size)
