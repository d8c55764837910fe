r"""Reading of an answer: its form is recognised from the outside to the inside, and a text in none is a phrase."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from astraflow.rewards.mathematics.algebra.expressions import Apply, Expression, Number, parts_of, replaced
from astraflow.rewards.mathematics.brackets import CLOSING, OPENING, close_of, permutation_of, split, without_group
from astraflow.rewards.mathematics.forms import (
    Based,
    Chain,
    Congruence,
    Form,
    Grouping,
    Intersection,
    Items,
    Phrase,
    Quantity,
    Ratio,
    Reals,
    Table,
    Union,
)
from astraflow.rewards.mathematics.phrases import phrase_of
from astraflow.rewards.mathematics.quantities import read_quantity
from astraflow.rewards.mathematics.ranges import BOUND
from astraflow.rewards.mathematics.spelling import NUMBERS, cleaned, list_spelling, unit_spelling
from astraflow.rewards.mathematics.tokens import Kind, Token, Unreadable, tokens_of

_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "le": "<=", "ge": ">=", "ne": "!=", "approx": "~", "in": "in", "notin": "notin",
    "equiv": "mod", "sim": "~",
}  # fmt: skip
_LEADING = ("the", "final", "answer", "is", "about", "approximately", "roughly", "therefore", "so", "thus")
_OPERATORS = frozenset(("+", "-", "*", "/", "^", "!", "frac", "sqrt", "cdot", "times", "pi", "div"))
_MATRICES = frozenset(("pmatrix", "bmatrix", "Bmatrix", "matrix", "array", "smallmatrix", "cases", "aligned", "align"))


def readings(text: str) -> tuple[Form, ...]:
    """Returns the forms that a text may have: more than one only where commas have two meanings."""
    other = list_spelling(text)
    return (read(text),) if other is None else (read(text), read(other))


def unit_reading(text: str) -> Quantity | None:
    """Returns a plain text such as `5 m/s` as a quantity with known units, None for another."""
    spelled = unit_spelling(text)
    form = read(spelled) if spelled is not None else None
    return form if isinstance(form, Quantity) and form.unit is not None and form.unit.has_known_parts else None


@lru_cache(maxsize=512)
def read(text: str) -> Form:
    r"""Returns the form of an answer.

    >>> read(r"\text{Monday}"), read("(1,2]").brackets, type(read(r"5\text{ cm}")).__name__
    (Phrase(words=('monday',)), '(]', 'Quantity')
    """
    spelled = cleaned(text)
    try:
        permutation = permutation_of(spelled)
        if permutation is not None:
            return permutation
        return _read(_stripped(tokens_of(spelled)))
    except (Unreadable, RecursionError):
        return Phrase((spelled.casefold(),))


def _read(tokens: list[Token]) -> Form:
    tokens = without_group(tokens)
    if not tokens:
        return Phrase(())
    if all(token.kind is Kind.WORD for token in tokens) and (len(tokens) > 1 or len(tokens[0].text) > 1):
        words, _ = split(tokens, _is_joint)
        return (_separated(tokens) if all(len(word) <= 1 for word in words) else None) or phrase_of(tokens)
    for reader in _READERS:
        form = reader(tokens)
        if form is not None:
            return form
    return phrase_of(tokens)


def _separated(tokens: list[Token]) -> Form | None:
    """Reads items with commas, semicolons, "and" or "or" between them."""
    parts, joints = split(tokens, _is_joint)
    if len(parts) < 2:
        return None
    parts = [part for part in parts if part]
    if len(parts) < 2:
        return _read(parts[0]) if parts else None
    forms = [_read(part) for part in parts]
    names = {form.names[0] for form in forms if isinstance(form, Chain)}
    if all(isinstance(form, Chain) and _is_inequality(form) for form in forms):
        is_listed = "and" not in joints
        return Union(tuple(forms)) if "or" in joints else Intersection(tuple(forms), is_listed)
    if any(isinstance(form, Union | Reals) for form in forms) or ("or" in joints and all(map(_is_range, forms))):
        return Union(tuple(forms))
    if len(names) == 1 and "" not in names and isinstance(forms[0], Chain) and forms[0].operators == ("=",):
        forms = [form.sides[-1] if isinstance(form, Chain) else form for form in forms]
    flat = _flat(forms)
    return _summed(flat) or Items(Grouping.LIST, flat)


def _summed(forms: Sequence[Form]) -> Quantity | None:
    """Returns the sum of quantities such as 5 feet and 4 inches: known, different units of one dimension."""
    quantities = [form for form in forms if isinstance(form, Quantity)]
    units = [quantity.unit for quantity in quantities if quantity.unit is not None and quantity.unit.is_known]
    if len(units) != len(forms) or len(set(units)) != len(units) or len({unit.powers for unit in units}) != 1:
        return None
    total: Expression = quantities[0].expression
    for quantity, unit in zip(quantities[1:], units[1:], strict=True):
        scaled = Apply("*", (Number(unit.factor / units[0].factor), quantity.expression))
        total = Apply("+", (total, scaled))
    return Quantity(total, units[0])


def _is_joint(token: Token) -> bool:
    return (
        token.text in (",", ";")
        or (token.kind is Kind.WORD and token.text.casefold() in ("and", "or"))
        or (token.kind is Kind.COMMAND and token.text in ("lor", "land", "vee", "wedge"))
    )


def _related(tokens: list[Token]) -> Form | None:
    """Reads relations; a congruence with its modulus."""
    parts, operators = split(tokens, lambda token: token.text in _RELATIONS and token.kind is not Kind.WORD)
    if len(parts) < 2:
        return _modular(tokens)
    names = [_RELATIONS[operator] for operator in operators]
    if "mod" in names:
        modular = _modular(parts[1]) if len(parts) == 2 else None
        if not isinstance(modular, Congruence):
            return phrase_of(tokens)
        return Congruence(_read(parts[0]), modular.right, modular.modulus)
    if "notin" in names:
        return phrase_of(tokens)
    if names[0] == "in" and len(parts) == 2:
        return _read(parts[1])
    if not parts[0] and names[0] in ("=", "~"):
        parts, names = parts[1:], names[1:]
        if not names:
            return _read(parts[0])
    if not all(parts):
        return phrase_of(tokens)
    return Chain(tuple(map(_read, parts)), tuple(names), tuple(map(_name, parts)))


def _modular(tokens: list[Token]) -> Form | None:
    for at, token in enumerate(tokens):
        if token.kind in (Kind.COMMAND, Kind.WORD) and token.text in ("pmod", "mod", "bmod") and at:
            right = tokens[:at]
            if right[-1].text == "(":
                right = right[:-1]
            modulus = [part for part in tokens[at + 1 :] if part.text not in ("(", ")")]
            return Congruence(None, _read(right), _read(modulus)) if modulus else None
    return None


def _name(tokens: list[Token]) -> str:
    """Returns the text of a name such as `x`, `a_n`, `f(x)`, `AB` or "area"; empty for an expression."""
    index = depth = 0
    for at, token in enumerate(tokens):
        is_indexed = at > 0 and tokens[at - 1].text == "_"
        index += (token.text == "{" and (is_indexed or index > 0)) - (token.text == "}" and index > 0)
        depth += (token.text == "(") - (token.text == ")")
        if is_indexed or index:
            continue
        if token.text in _OPERATORS or (token.kind is Kind.NUMBER and not (depth and at > 1)):
            return ""
        if token.kind is Kind.MARK and token.text not in ("(", ")", ",", "_", "'", "{", "}", "=", "|"):
            return ""
    texts = [token.text for token in tokens]
    is_constant = texts in (["e"], ["i"], ["pi"], ["infty"])
    return "" if is_constant else "".join(text for text in texts if text not in ("{", "}"))


def _united(tokens: list[Token]) -> Form | None:
    r"""Reads a union of sets, or the real numbers without a set."""
    if len(tokens) == 1 and tokens[0].text in ("setR", "emptyset"):
        return Reals() if tokens[0].text == "setR" else Items(Grouping.SET, ())
    parts, _ = split(tokens, lambda token: token.text == "setminus")
    if len(parts) == 2 and parts[0] and parts[0][0].text == "setR":
        return Reals(_read(parts[1]))
    parts, _ = split(tokens, lambda token: token.kind is Kind.COMMAND and token.text == "cup")
    if len(parts) == 1:
        parts = _split_at_letter(tokens)
    return Union(tuple(map(_read, parts))) if len(parts) > 1 and all(parts) else None


def _split_at_letter(tokens: list[Token]) -> list[list[Token]]:
    """Splits at a letter U between brackets, which plain texts use for a union."""
    parts, begin = [], 0
    for at in range(1, len(tokens) - 1):
        is_between = tokens[at - 1].text in (")", "]", "\\}") and tokens[at + 1].text in ("(", "[", "\\{")
        if tokens[at].text == "U" and is_between:
            parts.append(tokens[begin:at])
            begin = at + 1
    return [*parts, tokens[begin:]]


def _bracketed(tokens: list[Token]) -> Form | None:
    """Reads a set, a tuple, an interval or a vector: brackets around the whole, with commas inside."""
    opening, closing = tokens[0].text, tokens[-1].text
    if len(tokens) < 2 or opening not in OPENING or closing not in CLOSING or close_of(tokens) != len(tokens) - 1:
        return None
    inner = tokens[1:-1]
    if opening == "begin":
        return None
    if opening == "\\{":
        return _set(inner)
    parts, _ = split(inner, lambda token: token.text == ",")
    if opening == "langle":
        return Items(Grouping.VECTOR, tuple(map(_read, parts)))
    if opening not in ("(", "[") or closing not in (")", "]"):
        return None
    if len(parts) < 2 or not all(parts):
        is_group = opening == "(" and closing == ")" and len(parts) == 1
        inside = _read(inner) if is_group and inner else None
        return None if isinstance(inside, Quantity) else inside
    grouping = Grouping.TUPLE if opening + closing == "()" else Grouping.INTERVAL
    return Items(grouping, tuple(map(_read, parts)), opening + closing)


def _set(inner: list[Token]) -> Form | None:
    parts, _ = split(inner, lambda token: token.text in ("|", ":"))
    if len(parts) == 2 and parts[0] and parts[1]:
        form = _read(parts[1])
        if isinstance(form, Chain):
            form = replace(form, names=tuple(name and BOUND for name in form.names))
        return form if _is_range(form) and _name(parts[0][:1]) else None
    items, _ = split(inner, lambda token: token.text in (",", ";"))
    return Items(Grouping.SET, _flat([_read(item) for item in items if item]))


def _flat(forms: list[Form]) -> tuple[Form, ...]:
    """Returns forms with the items of lists, such as those of ±, in their place."""
    nested = (form.items if isinstance(form, Items) and form.grouping is Grouping.LIST else (form,) for form in forms)
    return tuple(form for forms in nested for form in forms)


def _tabular(tokens: list[Token]) -> Form | None:
    """Reads a matrix or the cases of a function."""
    if tokens[0].text != "begin" or len(tokens) < 8 or close_of(tokens) is None:
        return None
    begin = next((at for at, token in enumerate(tokens) if token.text == "}"), None)
    end = len(tokens) - 1 - next((at for at, token in enumerate(reversed(tokens)) if token.text == "end"), 0)
    if begin is None or end <= begin:
        return None
    name = "".join(token.text for token in tokens[2:begin])
    if name not in _MATRICES or "".join(token.text for token in tokens[end + 2 : -1]) != name:
        return None
    body = tokens[begin + 1 : end]
    if name == "array" and body and body[0].text == "{":
        body = body[next(at for at, token in enumerate(body) if token.text == "}") + 1 :]
    rows, _ = split(body, lambda token: token.text == "\\\\")
    cells = [split(row, lambda token: token.text == "&")[0] for row in rows if row]
    is_matrix = name not in ("cases", "aligned", "align")
    return Table(tuple(tuple(_cell(cell) for cell in row) for row in cells), is_matrix)


def _cell(tokens: list[Token]) -> Form:
    if tokens and tokens[0].kind is Kind.WORD and tokens[0].text.casefold() in ("if", "for", "when"):
        tokens = tokens[1:]
    return _read([token for token in tokens if token.text != ","] if tokens and tokens[-1].text == "," else tokens)


def _proportional(tokens: list[Token]) -> Form | None:
    """Reads a ratio or a time of day."""
    parts, _ = split(tokens, lambda token: token.text == ":" or (token.kind is Kind.WORD and token.text == "to"))
    if len(parts) < 2 or not all(parts):
        return None
    forms = [_read(part) for part in parts]
    if not all(isinstance(form, Quantity) for form in forms):
        return None
    last = forms[-1]
    unit = last.unit if isinstance(last, Quantity) else None
    minutes = parts[-1][0].text
    is_time = len(parts) == 2 and ":" in {token.text for token in tokens} and len(minutes) == 2 and minutes.isdecimal()
    is_time = is_time and int(minutes) < 60 and len(parts[0]) == 1 and parts[0][0].text.isdecimal()
    values = tuple(Quantity(form.expression) for form in forms if isinstance(form, Quantity))
    return Ratio(values, unit, is_time)


def _based(tokens: list[Token]) -> Form | None:
    """Reads digits with a base as their index."""
    marks = [at for at, token in enumerate(tokens) if token.text == "_"]
    if len(marks) != 1:
        return None
    digits = "".join(token.text for token in tokens[: marks[0]] if token.text not in ("(", ")", "{", "}"))
    base = "".join(token.text for token in tokens[marks[0] + 1 :] if token.text not in ("(", ")", "{", "}"))
    if not re.fullmatch(r"[0-9][0-9A-Fa-f]*", digits):
        return None
    number = NUMBERS.get(base.casefold(), int(base) if base.isdecimal() and len(base) <= 2 else 0)
    return Based(digits.upper().lstrip("0") or "0", number) if 2 <= number <= 36 else None


def _quantity(tokens: list[Token]) -> Form | None:
    """Reads an expression with or without a unit; one with ± is two."""
    quantity = read_quantity(tokens)
    if quantity is None:
        return None
    functions = {part.function for part in parts_of(quantity.expression) if isinstance(part, Apply)}
    if functions.isdisjoint(("pm", "mp")):
        return quantity
    plus = replaced(quantity.expression, "+", "pm", "mp")
    minus = replaced(quantity.expression, "-", "pm", "mp")
    return Items(Grouping.LIST, (Quantity(plus, quantity.unit), Quantity(minus, quantity.unit)))


_READERS: tuple[Callable[[list[Token]], Form | None], ...] = (
    _tabular, _bracketed, _separated, _related, _united, _proportional, _based, _quantity,
)  # fmt: skip


def _is_inequality(form: Form) -> bool:
    return isinstance(form, Chain) and all(operator in ("<", "<=", ">", ">=", "!=") for operator in form.operators)


def _is_range(form: Form) -> bool:
    if isinstance(form, Items):
        return form.grouping is Grouping.INTERVAL or (form.grouping is Grouping.TUPLE and len(form.items) == 2)
    return isinstance(form, Union | Intersection | Reals) or _is_inequality(form)


def _stripped(tokens: list[Token]) -> list[Token]:
    """Returns tokens without words that introduce an answer, and without signs around it."""
    while len(tokens) > 1 and (
        (tokens[0].kind is Kind.WORD and tokens[0].text.casefold() in _LEADING)
        or tokens[0].text in ("approx", "=", ":", "sim", "therefore")
    ):
        tokens = tokens[1:]
    while len(tokens) > 1 and (tokens[-1].text == "." or tokens[-1].text.casefold() == "only"):
        tokens = tokens[:-1]
    return tokens
