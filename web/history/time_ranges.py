"""Time ranges of pages, and their form in URLs.

?range=1h                     the last hour, moving
?from=1800000000&to=...       fixed: Unix seconds, or a UTC time as in a form's date field
?x=step&from=5&to=90          a range of steps (tokens, episodes), which the charts' scripts apply to all of the time
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

NAMED_RANGES_S = {"15m": 900.0, "1h": 3600.0, "6h": 21600.0, "24h": 86400.0}
"""Durations of the named ranges that end now, seconds."""

DEFAULT_RANGE = "15m"
CUSTOM = "custom"

MAX_RANGE_S = 31 * 86400.0
MIN_RANGE_S = 10.0
LATEST_AT = 4e9
"""Unix seconds; later times are treated as mistakes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """Time range of a page."""

    name: str
    """Key of `NAMED_RANGES_S`, or `custom`."""
    duration_s: float
    end: float | None = None
    """Unix seconds; None for now: the range moves."""

    @property
    def is_moving(self) -> bool:
        """True if the range ends now."""
        return self.end is None

    @property
    def query(self) -> dict[str, str]:
        """Range as URL parameters."""
        if self.end is None:
            return {"range": self.name}
        return {"from": _seconds(self.end - self.duration_s), "to": _seconds(self.end)}


def range_from(query: Mapping[str, str]) -> TimeRange:
    """Range of URL parameters; the default for invalid ones.

    >>> range_from({"range": "6h"}).duration_s, range_from({"range": "word"}).name
    (21600.0, '15m')
    >>> range_from({"from": "100", "to": "1970-01-01T00:05"}).query
    {'from': '100', 'to': '300'}
    >>> range_from({"x": "step", "from": "100", "to": "200"}).name
    '15m'
    """
    is_time = query.get("x", "time") == "time"
    begin, end = (_timestamp(query.get(name, "")) if is_time else None for name in ("from", "to"))
    if begin is not None and end is not None and end - begin >= MIN_RANGE_S:
        return TimeRange(name=CUSTOM, duration_s=min(end - begin, MAX_RANGE_S), end=end)
    name = query.get("range", "")
    name = name if name in NAMED_RANGES_S else DEFAULT_RANGE
    return TimeRange(name=name, duration_s=NAMED_RANGES_S[name])


def _timestamp(text: str) -> float | None:
    """Unix seconds; None for an invalid text.

    >>> _timestamp("12.5"), _timestamp("1970-01-01T00:01"), _timestamp("soon"), _timestamp("nan"), _timestamp("1e99")
    (12.5, 60.0, None, None, None)
    """
    try:
        at = float(text)
    except ValueError:
        try:
            at = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
        except (ValueError, OverflowError):
            return None
    return at if 0 <= at <= LATEST_AT else None


def _seconds(at: float) -> str:
    return f"{at:.3f}".rstrip("0").rstrip(".")
