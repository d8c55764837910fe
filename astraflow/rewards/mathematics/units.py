"""Units of quantities: their words, plurals and abbreviations, and exact factors between those of one dimension."""

from dataclasses import dataclass
from fractions import Fraction

_F = Fraction
_LENGTH, _TIME, _MASS, _VOLUME, _MONEY = "length", "time", "mass", "volume", "dollar"
_MILE = _F(1609344, 1000)
_FOOT = _F(3048, 10000)

_TABLE: dict[str, tuple[Fraction, dict[str, int]]] = {
    "nm": (_F(1, 10**9), {_LENGTH: 1}), "um": (_F(1, 10**6), {_LENGTH: 1}), "mm": (_F(1, 1000), {_LENGTH: 1}),
    "cm": (_F(1, 100), {_LENGTH: 1}), "dm": (_F(1, 10), {_LENGTH: 1}), "m": (_F(1), {_LENGTH: 1}),
    "km": (_F(1000), {_LENGTH: 1}), "inch": (_FOOT / 12, {_LENGTH: 1}), "foot": (_FOOT, {_LENGTH: 1}),
    "yard": (_FOOT * 3, {_LENGTH: 1}), "mile": (_MILE, {_LENGTH: 1}),
    "ms": (_F(1, 1000), {_TIME: 1}), "second": (_F(1), {_TIME: 1}), "minute": (_F(60), {_TIME: 1}),
    "hour": (_F(3600), {_TIME: 1}), "day": (_F(86400), {_TIME: 1}), "week": (_F(604800), {_TIME: 1}),
    "mg": (_F(1, 10**6), {_MASS: 1}), "g": (_F(1, 1000), {_MASS: 1}), "kg": (_F(1), {_MASS: 1}),
    "ounce": (_F(45359237, 16 * 10**8), {_MASS: 1}), "pound": (_F(45359237, 10**8), {_MASS: 1}),
    "ml": (_F(1, 1000), {_VOLUME: 1}), "cl": (_F(1, 100), {_VOLUME: 1}), "liter": (_F(1), {_VOLUME: 1}),
    "cent": (_F(1, 100), {_MONEY: 1}), "dollar": (_F(1), {_MONEY: 1}),
    "mph": (_MILE / 3600, {_LENGTH: 1, _TIME: -1}), "kph": (_F(1000, 3600), {_LENGTH: 1, _TIME: -1}),
    "cc": (_F(1, 10**6), {_LENGTH: 3}),
    "n": (_F(1), {"newton": 1}), "j": (_F(1), {"joule": 1}), "kj": (_F(1000), {"joule": 1}), "w": (_F(1), {"watt": 1}),
    "kw": (_F(1000), {"watt": 1}), "v": (_F(1), {"volt": 1}), "hz": (_F(1), {"hertz": 1}), "pa": (_F(1), {"pascal": 1}),
    "ev": (_F(1), {"electronvolt": 1}), "mol": (_F(1), {"mole": 1}), "k": (_F(1), {"kelvin": 1}),
    "ohm": (_F(1), {"ohm": 1}), "kohm": (_F(1000), {"ohm": 1}), "mohm": (_F(10**6), {"ohm": 1}),
    "percent": (_F(1), {"percent": 1}), "degree": (_F(1), {"degree": 1}), "radian": (_F(1), {"radian": 1}),
    "am": (_F(1), {"am": 1}), "pm": (_F(1), {"pm": 1}), "year": (_F(1), {"year": 1}), "month": (_F(1), {"month": 1}),
}  # fmt: skip
"""Factor to the first unit of a dimension, and powers of dimensions."""

_DIMENSIONS = {name for _, powers in _TABLE.values() for name in powers}

_ALIASES = {
    "millimeter": "mm", "centimeter": "cm", "decimeter": "dm", "meter": "m", "kilometer": "km", "millimetre": "mm",
    "centimetre": "cm", "metre": "m", "kilometre": "km", "nanometer": "nm", "in": "inch", "inches": "inch",
    "ft": "foot",
    "feet": "foot", "yd": "yard", "mi": "mile", "s": "second", "sec": "second", "min": "minute", "h": "hour",
    "hr": "hour", "milligram": "mg", "gram": "g", "kilogram": "kg", "oz": "ounce", "lb": "pound", "milliliter": "ml",
    "litre": "liter", "l": "liter", "millilitre": "ml", "usd": "dollar", "buck": "dollar", "deg": "degree",
    "rad": "radian",
    "kmh": "kph", "kmph": "kph", "newton": "n", "joule": "j", "watt": "w", "volt": "v", "hertz": "hz", "pascal": "pa",
    "mole": "mol", "kelvin": "k", "kilojoule": "kj", "kilowatt": "kw", "pct": "percent", "yr": "year",
    "kiloohm": "kohm", "kilohm": "kohm", "megaohm": "mohm", "millisecond": "ms", "micrometer": "um",
    "penny": "cent", "pennies": "cent",
}  # fmt: skip
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cubed": 3, "cu": 3}
_NO_UNITS = frozenset((
    "not", "no", "or", "and", "of", "to", "if", "than", "then", "is", "are", "about", "least", "most", "more",
    "less", "except", "but", "nor", "times", "plus", "minus", "over", "times", "thousand", "hundred",
    "million", "billion", "trillion", "dozen", "half", "double", "remainder", "r", "mod", "modulo", "true",
    "false", "yes", "none", "out", "where", "when", "for", "from", "only", "otherwise", "with", "without",
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
    "november", "december", "base", "choose",
))  # fmt: skip
"""Words after a number that are no unit: they change what the number means."""

_FRACTIONS = frozenset(
    ("halves", "third", "thirds", "fourths", "fifths", "sixths", "eighths", "tenths", "hundredths", "thousandths")
)
_SUFFIXES = frozenset(("k", "M", "B", "bn"))
"""Abbreviations of thousand, million and billion."""

MULTIPLIERS = {"dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
"""Words that multiply the number before them."""

MAX_WORDS = 6
_NOT_ALONE = _NO_UNITS | _FRACTIONS | _POWERS.keys() | {"factorial", "below", "above", "under", "off", "negative"}


@dataclass(frozen=True, slots=True)
class Unit:
    """Product of powers of dimensions with a factor; the name of an unknown unit is its dimension."""

    factor: Fraction
    powers: tuple[tuple[str, int], ...]

    def times(self, other: "Unit", exponent: int) -> "Unit":
        """Returns the product with a power of another unit."""
        powers = dict(self.powers)
        for dimension, power in other.powers:
            powers[dimension] = powers.get(dimension, 0) + power * exponent
        kept = tuple(sorted((dimension, power) for dimension, power in powers.items() if power))
        return Unit(self.factor * other.factor**exponent, kept)

    @property
    def is_percent(self) -> bool:
        """True for percent alone."""
        return self.powers == (("percent", 1),)

    @property
    def is_angle(self) -> bool:
        """True for degrees."""
        return self.powers == (("degree", 1),)

    @property
    def has_known_parts(self) -> bool:
        """True for a product of powers of units of the table."""
        return {name for name, _ in self.powers} <= _DIMENSIONS

    @property
    def is_known(self) -> bool:
        """True for a unit of the table, which has a factor to others."""
        return self.powers in {tuple(sorted(powers.items())) for _, powers in _TABLE.values()}


NO_UNIT = Unit(Fraction(1), ())


def is_unit_word(word: str) -> bool:
    """Returns whether a word is a known unit or its plural.

    >>> is_unit_word("meters"), is_unit_word("apples")
    (True, False)
    """
    return _known(word) is not None or word.casefold() in MULTIPLIERS or word.casefold() in _POWERS


def unit_of(words: list[str]) -> Unit | None:
    r"""Returns the unit that words, slashes and powers describe; None if they are no unit.

    >>> unit_of(["miles", "per", "hour"]) == unit_of(["mph"]), unit_of(["cm", "^", "2"]) == unit_of(["square", "cm"])
    (True, True)
    >>> unit_of(["km"]) == unit_of(["cm"]), unit_of(["red", "balls"]) == unit_of(["red", "ball"]), unit_of(["or"])
    (False, True, None)
    """
    unit, sign, power, at, plain = NO_UNIT, 1, 1, 0, 0
    while at < len(words):
        word = words[at].casefold()
        at += 1
        if word in ("/", "per", "an", "a", "each") and (word == "/" or words[at:]):
            sign = -1 if word in ("/", "per") or at > 1 else sign
        elif word in ("*", "the", "-", "(", ")", "{", "}", "o'clock"):
            continue
        elif word in _POWERS and at < len(words) and word not in ("squared", "cubed"):
            power = _POWERS[word]
        else:
            is_word = word.replace("'", "").isalpha() and word not in _NOT_ALONE and words[at - 1] not in _SUFFIXES
            if not is_word or plain >= MAX_WORDS:
                return None
            exponent, at = _exponent(words, at)
            unit, power = unit.times(_base(words, at, word), sign * power * exponent), 1
            plain += 1
    return unit if plain else None


def _base(words: list[str], at: int, word: str) -> Unit:
    return _known(word) or Unit(Fraction(1), ((_singular(word), 1),))


def _exponent(words: list[str], at: int) -> tuple[int, int]:
    """Returns the exponent behind a word, 1 without one, and the place behind it."""
    if at < len(words) and words[at] in ("squared", "cubed"):
        return _POWERS[words[at]], at + 1
    rest = words[at : at + 5]
    if not rest or rest[0] != "^":
        return 1, at
    digits = [part for part in rest[1:] if part not in "{}"]
    sign = -1 if digits[:1] == ["-"] else 1
    digits = digits[1:] if sign < 0 else digits
    if not digits or not digits[0].isdecimal():
        return 1, at
    end = at + 1 + rest[1:].index(digits[0]) + 1
    return sign * int(digits[0][:2]), end + (end < len(words) and words[end] == "}")


def _known(word: str) -> Unit | None:
    folded = word.casefold()
    for name in (folded, folded.removesuffix("s"), folded.removesuffix("es")):
        entry = _TABLE.get(_ALIASES.get(name, name))
        if entry and not (len(name) == 1 and name != folded):
            return Unit(entry[0], tuple(sorted(entry[1].items())))
    return None


def _singular(word: str) -> str:
    return word.removesuffix("s") if len(word) > 3 else word
