"""Formats numbers and times for people. A missing value is a dash everywhere."""

import math
import re

from astraflow.contract.records import rate_text

MISSING = "\N{EN DASH}"

NOW_S = 1.5
"""Age below which a time reads as now, in seconds."""

_NARROW = "\N{NARROW NO-BREAK SPACE}"
_ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
_ULID_IN_TEXT = re.compile(r"\b([0-9A-HJKMNP-TV-Z]{26})(\.\d+)?\b")
_HASH_IN_TEXT = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{24,}\b")
_MINUS = "\N{MINUS SIGN}"
_SUFFIXES = (("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15))
_NEARLY_ALL = 0.9995
"""Share from which one decimal of per cent rounds to 100."""
_ROUNDS_UP = 0.9995
"""Share of a unit from which three significant digits round to the whole unit."""


def count(value: float | None) -> str:
    """Formats a whole number with grouped digits.

    >>> count(4812), count(1_250_000)
    ('4,812', '1.25\\u202fM')
    """
    if value is None:
        return MISSING
    if abs(value) >= 1e6:
        return f"{value / 1e6:.2f}{_NARROW}M"
    return f"{value:,.0f}".replace("-", _MINUS)


def rate(value: float | None) -> str:
    """Formats a rate with three significant digits.

    >>> rate(0.0), rate(0.456), rate(14.23), rate(4210.4)
    ('0', '0.46', '14.2', '4,210')
    """
    return MISSING if value is None else rate_text(value).replace("-", _MINUS)


def reward(value: float | None, error: float | None = None) -> str:
    """Formats a reward with two decimals, and its error if that is known.

    >>> reward(0.8349), reward(1), reward(0.5, 0.021)
    ('0.83', '1.00', '0.50 ± 0.02')
    """
    text = MISSING if value is None else f"{value:.2f}".replace("-", _MINUS)
    return text if error is None else f"{text} ± {reward(error)}"


def figure(value: float | None) -> str:
    """Formats a number of any size with three significant digits.

    Whole numbers below a thousand have no decimals.

    >>> figure(0.012345), figure(-2.5), figure(0), figure(1e-6), figure(37912.4)
    ('0.0123', '\u22122.50', '0', '1.00e\u22126', '37.9k')
    """
    if value is None:
        return MISSING
    size = abs(value)
    if size < 1e3 and float(value).is_integer():
        text = f"{value:.0f}"
    elif 0.001 <= size < _ROUNDS_UP * 1e3:
        text = _three_digits(value)
    elif fitting_units := [(suffix, unit) for suffix, unit in _SUFFIXES if 1 <= size / (_ROUNDS_UP * unit) < 1e3]:
        suffix, unit = fitting_units[0]
        text = f"{_three_digits(value / unit)}{suffix}"
    else:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        text = f"{mantissa}e{int(exponent)}"
    return text.replace("-", _MINUS)


def _three_digits(value: float) -> str:
    return f"{value:#.3g}".removesuffix(".")


def with_unit(value: float | None, unit: str) -> str:
    """Formats a number with three significant digits and its unit, a noun in the plural or a rate.

    >>> with_unit(37912.4, "tokens/s"), with_unit(1, "versions")
    ('37.9k\u202ftokens/s', '1\u202fversion')
    """
    if value is None:
        return MISSING
    noun = unit.removesuffix("s") if value == 1 and "/" not in unit else unit
    return f"{figure(value)}{_NARROW}{noun}"


def share(value: float | None) -> str:
    """Formats a fraction as per cent with three significant digits; only the whole is 100 %.

    >>> share(0.12345), share(0.00012), share(0.9999), share(1)
    ('12.3\u202f%', '0.0120\u202f%', '>99.9\u202f%', '100\u202f%')
    """
    if value is None:
        return MISSING
    return f">99.9{_NARROW}%" if _NEARLY_ALL <= value < 1 else f"{figure(value * 100)}{_NARROW}%"


def seconds(value_s: float | None) -> str:
    """Formats a duration with three significant digits; above ten minutes in the two largest units.

    >>> seconds(0.04567), seconds(12.345), seconds(750)
    ('45.7\u202fms', '12.3\u202fs', '12\u202fmin 30\u202fs')
    """
    if value_s is None:
        return MISSING
    if abs(value_s) >= 600:
        return duration(value_s)
    if abs(value_s) < _ROUNDS_UP and value_s:
        return f"{figure(value_s * 1000)}{_NARROW}ms"
    return f"{figure(value_s)}{_NARROW}s"


def percent(value: float | None) -> str:
    """Formats a fraction as per cent: only nothing is 0 %, only the whole is 100 %.

    >>> percent(0.1234), percent(0.004), percent(0.0001)
    ('12\\u202f%', '0.4\\u202f%', '<0.1\\u202f%')
    >>> percent(0.994), percent(0.9995), percent(1)
    ('99.4\\u202f%', '>99.9\\u202f%', '100\\u202f%')
    """
    if value is None:
        return MISSING
    scaled = value * 100
    if 0 < scaled < 0.05:
        return f"<0.1{_NARROW}%"
    if _NEARLY_ALL <= value < 1:
        return f">99.9{_NARROW}%"
    digits = 1 if 0 < abs(scaled) < 1 or 99 < scaled < 100 else 0
    return f"{scaled:.{digits}f}{_NARROW}%"


def ratio(value: float | None) -> str:
    """Formats a multiple.

    >>> ratio(1.1234)
    '1.12\u202f\u00d7'
    """
    return MISSING if value is None else f"{value:.2f}{_NARROW}\N{MULTIPLICATION SIGN}"


def dollars(value: float | None) -> str:
    """Formats an amount of US dollars; small amounts have more digits.

    >>> dollars(0.00421), dollars(0.5), dollars(12.3), dollars(1234)
    ('$0.0042', '$0.50', '$12.30', '$1,234')
    """
    if value is None:
        return MISSING
    if 0 < value < 0.1:
        return f"${value:.2g}" if value >= 0.0001 else "<$0.0001"
    return f"${value:,.2f}" if value < 1000 else f"${value:,.0f}"


def size(value: float | None) -> str:
    """Formats bytes in decimal units.

    >>> size(812), size(12_345_678)
    ('812\\u202fB', '12.3\\u202fMB')
    """
    if value is None:
        return MISSING
    unit = 0
    while abs(value) >= 999.5 and unit < 5:
        value, unit = value / 1000, unit + 1
    digits = 0 if unit == 0 or value >= 100 else 1
    return f"{value:.{digits}f}{_NARROW}{('B', 'kB', 'MB', 'GB', 'TB', 'PB')[unit]}"


def duration(value_s: float | None) -> str:
    """Formats seconds in the two largest units.

    >>> duration(0.0042), duration(0.42), duration(12.3), duration(130), duration(7260)
    ('4.2\\u202fms', '0.4\\u202fs', '12\\u202fs', '2\\u202fmin 10\\u202fs', '2\\u202fh 1\\u202fmin')
    """
    if value_s is None or not math.isfinite(value_s):
        return MISSING
    if 0 < value_s < 0.0995:
        return f"{value_s * 1000:.1f}{_NARROW}ms"
    if value_s < 9.95:
        return f"{max(0.0, value_s):.1f}{_NARROW}s"
    seconds = round(value_s)
    for size_s, unit, lower_s, lower in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size_s:
            rest = seconds % size_s // lower_s
            return f"{seconds // size_s}{_NARROW}{unit}" + (f" {rest}{_NARROW}{lower}" if rest else "")
    return f"{seconds}{_NARROW}s"


def since(seconds: float) -> str:
    """Formats the age of an event.

    >>> since(0.2), since(75)
    ('now', '1\\u202fmin 15\\u202fs ago')
    """
    return "now" if seconds < NOW_S else f"{duration(max(1.0, float(round(seconds))))} ago"


def several(number: float, noun: str) -> str:
    """Formats a count with its noun.

    >>> several(1, "node"), several(2, "node")
    ('1 node', '2 nodes')
    """
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def node_name(name: str) -> str:
    """Returns a node's display name: of a launch id (a ULID) its beginning, which is the time, and its end, which
    differs between nodes.

    >>> node_name("01M81E89RS092KPDXBVM39HZGA"), node_name("gpu-7")
    ('01M8\u202639HZGA', 'gpu-7')
    """
    return f"{name[:4]}\N{HORIZONTAL ELLIPSIS}{name[-6:]}" if _ULID.fullmatch(name) else name


def with_short_names(text: str) -> str:
    """Shortens the names in a sentence as `node_name` does, and long hashes to their first eight digits.

    >>> with_short_names("01M81E89RS092KPDXBVM39HZGA.2: away"), with_short_names("6edd01f2f68d728da2edf1f9762adedf")
    ('01M8\u202639HZGA: away', '6edd01f2\u2026')
    """
    short = _ULID_IN_TEXT.sub(lambda match: node_name(match[1]), text)
    return _HASH_IN_TEXT.sub(lambda match: f"{match[1]}\N{HORIZONTAL ELLIPSIS}", short)


def shortened(text: str, *, at_most: int) -> str:
    """Returns the text, or its beginning with an ellipsis."""
    return text if len(text) <= at_most else text[: at_most - 1] + "…"


def exact(value: float) -> str:
    """Formats a number for an input field: the shortest text that is read back as the same number.

    >>> exact(12345.67), exact(30.0), exact(0.1)
    ('12345.67', '30', '0.1')
    """
    return repr(float(value)).removesuffix(".0")


def usd(value: float | None) -> str:
    """Formats US dollars.

    >>> usd(0), usd(0.004), usd(2.5), usd(1234.5)
    ('$0', '$0.0040', '$2.50', '$1,234')
    """
    if value is None:
        return MISSING
    if value == 0:
        return "$0"
    digits = 0 if abs(value) >= 1000 else 2 if abs(value) >= 0.01 else 4
    return f"${value:,.{digits}f}".replace("$-", "\N{MINUS SIGN}$")
