r"""Tokens of a mathematical text in the spelling of `cleaned`."""

import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from astraflow.rewards.mathematics.units import is_unit_word

MAX_TOKENS = 2000
MAX_DIGITS = 1500
MAX_POWER_OF_TEN = 2000
"""Largest exponent of a number such as 1e5."""


class Unreadable(Exception):
    """A text or a part of it is in no form that is known: it is compared as text."""


class Kind(Enum):
    """Kinds of tokens."""

    NUMBER = "number"
    LETTER = "letter"
    WORD = "word"
    COMMAND = "command"
    MARK = "mark"


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer."""

    kind: Kind
    text: str
    """As written; a command has no backslash."""
    value: Fraction = Fraction(0)
    """Value of a number; 0 for other tokens."""
    is_decimal: bool = False
    """True for a number with a decimal point that may be rounded."""


FUNCTIONS = frozenset((
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "arccot", "sinh", "cosh", "tanh",
    "coth", "arsinh", "arcosh", "artanh", "ln", "log", "lg", "exp", "gcd", "lcm", "max", "min", "sqrt",
))  # fmt: skip
"""Names of functions, which plain texts write without a backslash."""

_PLAIN_NAMES = {name: name for name in FUNCTIONS} | {
    "pi": "pi", "theta": "theta", "alpha": "alpha", "beta": "beta", "infinity": "infty", "inf": "infty", "oo": "infty",
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "cosec": "csc", "binom": "binom", "arcsinh": "arsinh",
    "hcf": "gcd", "infty": "infty",
}  # fmt: skip
_CONNECTIVES = frozenset((
    "or", "and", "to", "is", "of", "in", "at", "no", "not", "the", "yes", "none", "out", "per", "only", "if",
    "when", "for", "from", "by", "odd", "even", "mod", "Yes", "No", "None", "Odd",
))  # fmt: skip
_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|texttt|textsf|textsc|mathrm|mbox|hbox|operatorname\*?|rm|emph)\s*\{"
)
_FONT = re.compile(
    r"\\(?:mathbf|mathsf|mathit|mathcal|mathbb|mathnormal|boldsymbol|bold|bf|bm|pmb|vec|hat|overrightarrow|underline"
    r"|boxed|fbox)(?![a-zA-Z])"
)
_FORMATTED = re.compile(r"\s*\{\s*(?:\\mathbf\s*\{)?\s*\\?([A-Za-z]+)\s*\}?\s*\}|\s*()([A-Za-z])(?![A-Za-z])")
_VECTOR_FONTS = frozenset(("mathbf", "vec", "hat", "boldsymbol", "bold", "bm", "overrightarrow", "pmb"))
_REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar|dot)\s*(?:\{(\d+)\}|(\d))")
_DOTTED = re.compile(r"(\d*)\.(\d*?)(\d+?)\3\3+\s*\\ldots")
_ROMAN = re.compile(r"II|III|IV|VI{1,3}|IX")
_ORDINALS = frozenset(("st", "nd", "rd", "th"))
_NUMBER = re.compile(r"(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+(?![\d.a-zA-Z{(^]))?")
_COMMAND = re.compile(r"\\([a-zA-Z]+)\s?")
_ESCAPED = re.compile(r"\\([^a-zA-Z])")
_RUN = re.compile(r"[A-Za-z]+")


def tokens_of(text: str) -> list[Token]:
    r"""Returns the tokens of a text. Raises: Unreadable when it is too long or its numbers are.

    >>> [token.text for token in tokens_of(r"2\text{ cm} + \pi x")]
    ['2', 'cm', '+', 'pi', 'x']
    """
    tokens: list[Token] = []
    _scan(text, tokens, is_text=False)
    return tokens


def _scan(text: str, tokens: list[Token], *, is_text: bool) -> None:
    at = 0
    while at < len(text):
        if len(tokens) > MAX_TOKENS:
            raise Unreadable
        at = _scan_one(text, at, tokens, is_text=is_text)


def _scan_one(text: str, at: int, tokens: list[Token], *, is_text: bool) -> int:
    """Appends the token or tokens at a place, and returns the place behind."""
    char = text[at]
    if char.isspace():
        return at + 1
    if char.isdigit() or char == ".":
        return _scan_number(text, at, tokens)
    if char == "\\":
        return _scan_command(text, at, tokens, is_text=is_text)
    run = _RUN.match(text, at)
    if run:
        _add_run(run[0], tokens, is_text=is_text)
        return run.end()
    if not char.isascii():  # a word of another language
        end = at + 1
        while end < len(text) and not text[end].isascii() and not text[end].isspace():
            end += 1
        tokens.append(Token(Kind.WORD, text[at:end]))
        return end
    tokens.append(Token(Kind.MARK, char))
    return at + 1


def _scan_number(text: str, at: int, tokens: list[Token]) -> int:
    repeating = _REPEATING.match(text, at) or _DOTTED.match(text, at)
    match = repeating or _NUMBER.match(text, at)
    if match is None:
        tokens.append(Token(Kind.MARK, "."))
        return at + 1
    if len(match[0]) > MAX_DIGITS:
        raise Unreadable
    if repeating:
        whole, fixed, period = repeating[1], repeating[2], repeating[3] or repeating[repeating.lastindex or 3]
        value = Fraction(int((whole + fixed) or "0")) + Fraction(int(period), 10 ** len(period) - 1)
        tokens.append(Token(Kind.NUMBER, match[0], value / 10 ** len(fixed)))
        return match.end()
    if "." in match[0] and text.startswith("\\ldots", match.end()) and not text[match.end() + 6 :].strip():
        tokens.append(Token(Kind.NUMBER, match[0], Fraction(match[0]), True))  # digits that go on are a decimal number
        return len(text)
    mantissa, _, exponent = match[0].lower().partition("e")
    if abs(int(exponent or "0")) > MAX_POWER_OF_TEN:
        raise Unreadable
    tokens.append(Token(Kind.NUMBER, match[0], Fraction(match[0]), "." in mantissa))
    return match.end()


def _scan_command(text: str, at: int, tokens: list[Token], *, is_text: bool) -> int:
    wrapper = _TEXT.match(text, at)
    if wrapper:
        end = _group_end(text, wrapper.end())
        if wrapper[0].startswith("\\mathrm") and text[wrapper.end() : end].strip() in ("e", "i", "d"):
            tokens.append(Token(Kind.LETTER, text[wrapper.end() : end].strip()))
            return end + 1
        _scan(text[wrapper.end() : end], tokens, is_text=True)
        return end + 1
    font = _FONT.match(text, at)
    if font:
        return _scan_font(text, font, tokens, is_text=is_text)
    command = _COMMAND.match(text, at)
    if command:
        name = command[1]
        if is_text and name not in _PLAIN_NAMES and name not in ("degree", "frac", "circ"):
            tokens.append(Token(Kind.WORD, name))
        else:
            tokens.append(Token(Kind.COMMAND, name))
        return command.end()
    escaped = _ESCAPED.match(text, at)
    if escaped is None:
        return at + 1
    mark = escaped[1]
    tokens.append(Token(Kind.MARK, mark if mark in "%$#&_" else "\\" + mark))
    return escaped.end()


def _scan_font(text: str, font: re.Match[str], tokens: list[Token], *, is_text: bool) -> int:
    """Appends what a font command formats: a bold letter is a vector, all else is as without the font."""
    rest = _FORMATTED.match(text, font.end())
    name = (rest[1] or rest[3]) if rest else ""
    command = font[0][1:]
    if command == "mathbb" and rest:
        tokens.append(Token(Kind.COMMAND, f"set{name}"))
        return rest.end()
    is_letter = len(name) == 1 or name in ("imath", "jmath")
    if rest and is_letter and command in _VECTOR_FONTS:
        tokens.append(Token(Kind.LETTER, f"vector {name[0]}"))
        return rest.end()
    if rest and len(name) > 1:
        _add_run(name, tokens, is_text=True)
        return rest.end()
    return font.end()


def _group_end(text: str, at: int) -> int:
    depth = 1
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] in "{}":
            depth += 1 if text[at] == "{" else -1
            if depth == 0:
                return at
        at += 1
    raise Unreadable


def _add_run(run: str, tokens: list[Token], *, is_text: bool) -> None:
    """Appends a run of letters as a command, a word or single letters."""
    last = tokens[-1] if tokens else None
    follows_number = last is not None and (last.kind is Kind.NUMBER or last.text in ("pi", ")", "}", "/"))
    is_unit = len(run) > 1 and follows_number and is_unit_word(run)
    if run in _PLAIN_NAMES and not is_unit:
        tokens.append(Token(Kind.COMMAND, _PLAIN_NAMES[run]))
    elif is_text or is_unit or run in _CONNECTIVES or len(run) >= 4 or _is_numeral(run, tokens):
        tokens.append(Token(Kind.WORD, run))
    else:
        tokens += [Token(Kind.LETTER, letter) for letter in run]


def _is_numeral(run: str, tokens: list[Token]) -> bool:
    """Returns whether letters are a Roman numeral, or the end of an ordinal such as 4th."""
    follows_number = bool(tokens) and tokens[-1].kind is Kind.NUMBER
    return run in _ORDINALS if follows_number else _ROMAN.fullmatch(run) is not None
