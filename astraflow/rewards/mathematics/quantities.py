r"""Reading of a quantity: an expression followed by a unit, money, an angle, or several units of one dimension."""

import re
from collections.abc import Sequence
from fractions import Fraction

from astraflow.rewards.mathematics.algebra.expressions import Apply, Expression, Number
from astraflow.rewards.mathematics.algebra.parser import parse
from astraflow.rewards.mathematics.forms import Quantity
from astraflow.rewards.mathematics.tokens import Kind, Token, Unreadable
from astraflow.rewards.mathematics.units import MULTIPLIERS, is_unit_word, unit_of

_DEGREE = unit_of(["degree"])
_POWER_OF_TEN = re.compile(r"(?<!\d)10\^\{[+-]?\d+\}$")
_FOOT_MARKS = {"'": "foot", '"': "inch"}


def read_quantity(tokens: Sequence[Token]) -> Quantity | None:
    """Returns the quantity that all tokens form, None if they form none.

    >>> from astraflow.rewards.mathematics.tokens import tokens_of
    >>> read_quantity(tokens_of(r"5\\text{ feet }4\\text{ inches}")) is not None, read_quantity(tokens_of("2R3"))
    (True, None)
    """
    tokens = _with_foot_marks(tokens)
    if tokens and tokens[0].kind is Kind.WORD and tokens[0].text in ("dollar", "euro", "pound", "USD"):
        return _money(tokens)
    end = next((at for at in range(len(tokens)) if _starts_unit(tokens, at)), len(tokens))
    expression = _parsed(tokens[:end])
    if expression is None:
        return None
    if end == len(tokens):
        return _angle(expression)
    return _with_units(expression, tokens[end:])


def _money(tokens: Sequence[Token]) -> Quantity | None:
    rest = read_quantity(tokens[1:])
    unit = unit_of([tokens[0].text])
    if rest is None or unit is None or (rest.unit is not None and rest.unit != unit):
        return None
    return Quantity(rest.expression, unit)


def _with_units(expression: Expression, tokens: Sequence[Token]) -> Quantity | None:
    """Reads the unit after an expression, and further numbers with units of the same dimension."""
    while tokens and tokens[0].text.casefold() in MULTIPLIERS:
        expression = Apply("*", (expression, Number(Fraction(MULTIPLIERS[tokens[0].text.casefold()]))))
        tokens = tokens[1:]
    if not tokens:
        return Quantity(expression)
    end = next((at for at, token in enumerate(tokens) if _starts_number(tokens, at, token)), len(tokens))
    unit = unit_of(_words(tokens[:end]))
    if unit is None:
        return None
    if isinstance(expression, Apply) and expression.function == "degree":  # 20 degrees Celsius
        scale = unit_of([f"degree{tokens[0].text.casefold()}"])
        return Quantity(expression.arguments[0], scale)
    if end == len(tokens):
        return Quantity(expression, unit)
    rest = read_quantity(tokens[end:])
    if rest is None or rest.unit is None or rest.unit.powers != unit.powers or rest.unit == unit or not unit.is_known:
        return None
    scaled = Apply("*", (Number(rest.unit.factor / unit.factor), rest.expression))
    return Quantity(Apply("+", (expression, scaled)), unit)


def _angle(expression: Expression) -> Quantity:
    is_angle = isinstance(expression, Apply) and expression.function == "degree"
    if is_angle and isinstance(expression, Apply):
        return Quantity(expression.arguments[0], _DEGREE)
    if isinstance(expression, Apply) and expression.function == "neg":
        inner = _angle(expression.arguments[0])
        return Quantity(Apply("neg", (inner.expression,)), inner.unit)
    return Quantity(expression)


def _parsed(tokens: Sequence[Token]) -> Expression | None:
    try:
        return parse(tokens) if tokens else None
    except Unreadable:
        return None


def _starts_unit(tokens: Sequence[Token], at: int) -> bool:
    token = tokens[at]
    if at == 0:
        return False
    if token.text == "%":
        return True
    if token.kind is Kind.COMMAND and token.text == "frac":
        inside = [part for part in tokens[at + 1 :] if part.kind is not Kind.MARK]
        return bool(inside) and all(part.kind is Kind.WORD for part in inside)
    if token.kind is not Kind.WORD:
        return False
    # A single letter in a text is a unit after a number, or if it is known as one: else it is a letter in another font.
    return len(token.text) > 1 or _ends_number(tokens[:at]) or is_unit_word(token.text)


def _ends_number(tokens: Sequence[Token]) -> bool:
    """Returns whether tokens end with a number or a power of ten."""
    is_power = _POWER_OF_TEN.search("".join(token.text for token in tokens[-6:])) is not None
    return tokens[-1].kind is Kind.NUMBER or is_power


def _starts_number(tokens: Sequence[Token], at: int, token: Token) -> bool:
    return token.kind is Kind.NUMBER and at > 0 and tokens[at - 1].text not in ("^", "{", "-", "_")


def _words(tokens: Sequence[Token]) -> list[str]:
    r"""Returns the words of a unit; \frac{a}{b} becomes a / b, and the sign of percent its word."""
    words = []
    for at, token in enumerate(tokens):
        if token.kind is Kind.COMMAND and token.text == "frac":
            continue
        if token.text == "}" and at + 1 < len(tokens) and tokens[at + 1].text == "{":
            words.append("/")
        elif token.text == "{" and (at == 0 or tokens[at - 1].text != "^"):
            continue
        elif token.text in ("cdot", "times", "."):
            words.append("*")
        else:
            words.append({"%": "percent"}.get(token.text, token.text))
    return words


def _with_foot_marks(tokens: Sequence[Token]) -> list[Token]:
    """Returns 5'4" with words in place of its marks."""
    texts = [token.text for token in tokens]
    if len(texts) == 4 and texts[1] == "'" and texts[3] == '"' and texts[0].isdecimal():
        return [Token(Kind.WORD, _FOOT_MARKS[token.text]) if token.text in _FOOT_MARKS else token for token in tokens]
    return list(tokens)
