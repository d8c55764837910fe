"""Texts of mathematical answers: extraction from a completion, normalization, and comparisons that need no algebra."""

import re
from fractions import Fraction

TAIL_CHARS = 2000
"""Length of the end of a completion that is searched for an answer without a box. Characters."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox|operatorname)\s*\{([^{}]*)\}")
_GROUPED = re.compile(r"([+-]?\d{1,3})((?:(?:,|\{,\}|\\,|\\!|\\ |~| )\d{3})+)(\.\d+)?")
_SPACE = r"(?:\\[,;:! ]|~|\s|\\q?quad(?![a-zA-Z]))+"
_SPACE_IN_NUMBER = re.compile(rf"(?<=\d){_SPACE}(?=\d)")
_OTHER_SPACE = re.compile(rf"(?<!\d){_SPACE}|{_SPACE}(?!\d)")
_UNIT = re.compile(
    r"(?<=[\d}])\s*(?:\^\{?\\circ\}?|\\(?:text|mathrm|textrm|mbox)\s*\{\s*([a-zA-Z][a-zA-Z ]*)\}(?:\^\{?\d\}?)?)"
)
_POWERS = {"dozen", "hundred", "thousand", "million", "billion", "trillion"}
_NOT_UNITS = _POWERS | {"percent", "pi", "or", "and"}
_WORD = re.compile(r"[a-z]+")
_LISTING = re.compile(r"(\\\{|\(|\[)?([^()\[\]|:<>]*?)(\\\}|\)|\])?")
_FRACTION = re.compile(r"(-?)\\frac(?:\{(-?\d+)\}\{(-?\d+)\}|(\d)(\d))")
_RATIO = re.compile(r"(-?\d+)/(\d+)")
_NUMBER = re.compile(r"-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,2})?")
_WITH_BASE = re.compile(r"\d+_\{?\d+\}?")
_WORDS = re.compile(r"[A-Za-z][A-Za-z '-]{2,}")
_MAX_NUMBER_CHARS = 60
_BRACES = ("\\{", "\\}")


def last_boxed(text: str) -> str | None:
    r"""Returns the content of the last box; None if it is missing or not closed.

    >>> last_boxed(r"\boxed{1}, no: \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    begin = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    match = _BOX.match(text, begin) if begin >= 0 else None
    if match is None:
        return None
    depth = 1
    for brace in re.finditer(r"\\.|[{}]", text[match.end() :], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[match.end() : match.end() + brace.start()]
    return None


def normalized(answer: str) -> str:
    r"""Returns the answer in one spelling: without spaces, size commands, wrappers and separators of thousands.

    >>> normalized(r"\dfrac{1}{2}."), normalized(r"\text{ 1\,000 }"), normalized(r"\left( 1, 2 \right)")
    ('\\frac{1}{2}', '1000', '(1,2)')
    """
    text = answer.strip().strip("$").strip()
    text = re.sub(r"\\(?:left|right|displaystyle|bigl?|bigr?)(?![a-zA-Z])\s*", "", text)
    text = re.sub(r"\\[dtc]frac(?![a-zA-Z])", r"\\frac", text).replace("\\$", "").replace("\N{MINUS SIGN}", "-")
    text = _unwrapped(_without_unit(text)).strip().rstrip(".").strip()
    grouped = _GROUPED.fullmatch(text)
    if grouped:
        text = grouped[1] + re.sub(r"\D", "", grouped[2]) + (grouped[3] or "")
    return _OTHER_SPACE.sub("", _SPACE_IN_NUMBER.sub(" ", text)).removeprefix("+")


def decided(gold: str, answer: str, *, decimals: int) -> bool | None:
    r"""Returns whether the answer is correct; None if only algebra can tell.

    decimals: number of decimal places that are compared.

    >>> decided("0.5", r"\frac12", decimals=6), decided("5", "7", decimals=6), decided("x+1", "1+x", decimals=6)
    (True, False, None)
    """
    normalized_gold, normalized_answer = normalized(gold), normalized(answer)
    if normalized_gold == normalized_answer:
        return True
    if not normalized_answer:
        return False
    if _POWERS.intersection(_WORD.findall(normalized_gold)) != _POWERS.intersection(_WORD.findall(normalized_answer)):
        return False
    if _number(normalized_gold) is not None and _number(normalized_answer) is not None:
        return _is_same_number(normalized_gold, normalized_answer, decimals)
    if _WITH_BASE.fullmatch(normalized_gold) and _WITH_BASE.fullmatch(normalized_answer):
        return _bare_base(normalized_gold) == _bare_base(normalized_answer)
    words = _words(gold)
    if words is not None:  # the product of the letters of a word is also the product of those of its anagrams
        return words == _words(answer)
    return _decided_listing(normalized_gold, normalized_answer, decimals)


def _decided_listing(gold: str, answer: str, decimals: int) -> bool | None:
    """Compares tuples, intervals and sets of numbers; returns None for other texts."""
    left, right = _LISTING.fullmatch(gold), _LISTING.fullmatch(answer)
    if left is None or right is None:
        return None
    brackets, others = (left[1] or "", left[3] or ""), (right[1] or "", right[3] or "")
    is_set, is_other_set = brackets == _BRACES, others == _BRACES
    if (is_set and others[0] in ("(", "[")) or (is_other_set and brackets[0] in ("(", "[")):
        return False
    items, other_items = left[2].split(","), right[2].split(",")
    if len(items) < 2 or any(_number(item) is None for item in (*items, *other_items)):
        return None
    if is_set or is_other_set or not any((*brackets, *others)):
        return _covers(items, other_items, decimals) and _covers(other_items, items, decimals)
    if brackets != others or len(items) != len(other_items):
        return False if all((*brackets, *others)) else None
    return all(_is_same_number(item, other, decimals) for item, other in zip(items, other_items, strict=True))


def _covers(items: list[str], others: list[str], decimals: int) -> bool:
    return all(any(_is_same_number(item, other, decimals) for other in others) for item in items)


def _is_same_number(gold: str, answer: str, decimals: int) -> bool:
    number, other = _number(gold), _number(answer)
    if number is None or other is None:
        return False
    if any(mark in text for text in (gold, answer) for mark in ".eE"):
        return round(number, decimals) == round(other, decimals)
    return number == other


def _without_unit(text: str) -> str:
    """Returns the text without a unit at its end, such as `\\text{ cm}^2`; words that change the number stay."""
    unit = None
    for unit in _UNIT.finditer(text):  # noqa: B007 (the last one)
        pass
    if unit is None or unit.end() != len(text) or (unit[1] and not _NOT_UNITS.isdisjoint(unit[1].lower().split())):
        return text
    return text[: unit.start()]


def _unwrapped(text: str) -> str:
    return _WRAPPER.sub(r"\1", text)


def _number(text: str) -> Fraction | None:
    """Returns the value of a number or a ratio of two numbers; None for other or very long texts."""
    if len(text) > _MAX_NUMBER_CHARS:
        return None
    fraction = _FRACTION.fullmatch(text)
    if fraction:
        over, under = fraction[2] or fraction[4], fraction[3] or fraction[5]
        value = Fraction(int(over), int(under)) if int(under) else None
        return -value if value is not None and fraction[1] else value
    ratio = _RATIO.fullmatch(text)
    if ratio:
        return Fraction(int(ratio[1]), int(ratio[2])) if int(ratio[2]) else None
    return Fraction(text) if _NUMBER.fullmatch(text) else None


def _bare_base(text: str) -> str:
    return text.replace("{", "").replace("}", "")


def _words(answer: str) -> str | None:
    """Returns an answer that consists of words, in one spelling; None for other answers."""
    text = " ".join(_unwrapped(answer.strip().strip("$")).replace("\\ ", " ").split()).rstrip(".").strip()
    return text.casefold() if _WORDS.fullmatch(text) else None
