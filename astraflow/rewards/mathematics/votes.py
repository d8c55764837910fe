"""Texts of answers that equal answers share, so that evaluations count them as one vote."""

from collections.abc import Sequence
from typing import Any

from astraflow.rewards.mathematics.algebra.evaluation import Budget
from astraflow.rewards.mathematics.algebra.identity import canonical
from astraflow.rewards.mathematics.comparison import is_equal
from astraflow.rewards.mathematics.equations import is_sum_of_letters
from astraflow.rewards.mathematics.forms import Chain, Form, Grouping, Items, Phrase, Quantity, Table
from astraflow.rewards.mathematics.ranges import Span, spans_of
from astraflow.rewards.mathematics.reading import read
from astraflow.rewards.mathematics.spelling import bare


def compare(call: dict[str, Any]) -> dict[str, Any]:
    """Returns whether an answer equals the correct one, `is_equal`, and the text of a different one, `vote`. It runs in
    a worker process: what it computes is bounded, but takes milliseconds.

    call: `gold` and `answer`, LaTeX or plain texts; `decimals`, places of the comparison of decimal numbers.
    """
    is_correct = is_equal(call["gold"], call["answer"], decimals=call["decimals"])
    return {"is_equal": is_correct, "vote": "" if is_correct else vote(call["answer"])}


def vote(text: str) -> str:
    r"""Returns a text that equal answers in other spellings share; what has no value is its own spelling.

    >>> vote("0.5"), vote(r"x=\frac12"), vote("4, 2"), vote(r"\{2,4\}"), vote(r"\text{Monday}")
    ('1/2', '1/2', '2, 4', '2, 4', 'monday')
    """
    try:
        return _of(read(text), Budget()) or bare(text)
    except RecursionError:  # hundreds of operators in a row
        return bare(text)


def _of(form: Form, budget: Budget) -> str | None:
    if isinstance(form, Quantity):
        value = canonical(form.expression, budget)
        powers = " ".join(f"{name}^{power}" for name, power in form.unit.powers) if form.unit is not None else ""
        scale = f"{form.unit.factor} " if form.unit is not None and form.unit.factor != 1 else ""
        return value and f"{value} {scale}{powers}".strip()
    if isinstance(form, Phrase):
        return " ".join(form.words)
    if isinstance(form, Chain) and set(form.operators) == {"="} and len(form.sides) == 2 and _is_stated(form):
        return _of(form.sides[1], budget)
    spans = spans_of(form)
    if spans is not None and (not isinstance(form, Items) or _is_interval(form, spans)):
        return " u ".join(map(_of_span, spans))
    if isinstance(form, Items):
        return _of_items(form, budget)
    if isinstance(form, Table):
        rows = [_joined(row, budget) for row in form.rows]
        return None if None in rows else "; ".join(row for row in rows if row is not None)
    return None


def _is_stated(form: Chain) -> bool:
    """Returns whether an equation states the value of a name, or of a sum of letters."""
    return bool(form.names[0]) or is_sum_of_letters(form.sides[0])


def _is_interval(form: Items, spans: Sequence[Span]) -> bool:
    """Returns whether items in brackets are the ends of an interval and not a pair of numbers."""
    is_infinite = any(isinstance(end, float) for span in spans for end in (span.low, span.high))
    return form.grouping is Grouping.INTERVAL or (form.grouping is Grouping.TUPLE and is_infinite)


def _of_items(form: Items, budget: Budget) -> str | None:
    if form.grouping in (Grouping.LIST, Grouping.SET):
        return _joined(form.items, budget, is_sorted=not form.goes_on)
    texts = _joined(form.items, budget)
    return None if texts is None else f"({texts})"


def _joined(forms: Sequence[Form], budget: Budget, *, is_sorted: bool = False) -> str | None:
    texts = [text for form in forms if (text := _of(form, budget)) is not None]
    return ", ".join(sorted(texts) if is_sorted else texts) if len(texts) == len(forms) else None


def _of_span(span: Span) -> str:
    low, high = (f"{end:.15g}" if isinstance(end, float) else str(end)[:20] for end in (span.low, span.high))
    return f"{'[' if span.has_low else '('}{low}, {high}{']' if span.has_high else ')'}"
