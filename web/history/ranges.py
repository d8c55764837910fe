"""Stretches of time that pages can be asked for, and how they live in an address.

?range=1h                     the last hour, which moves on
?from=1800000000&to=...       from then to then: Unix seconds, or a time in UTC as a form's date field has it
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

RANGES_S = {"15m": 900.0, "1h": 3600.0, "6h": 21600.0, "24h": 86400.0}
"""Those that end now, by name."""

DEFAULT_RANGE = "15m"
CUSTOM = "custom"

LONGEST_S = 31 * 86400.0
SHORTEST_S = 10.0
LATEST_AT = 4e9
"""Unix seconds; what lies beyond is a slip of the hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """A stretch of time."""

    name: str
    """One of `RANGES_S`, or `custom`."""
    duration_s: float
    end: float | None = None
    """Unix seconds; None for now: the range moves on."""

    @property
    def is_moving(self) -> bool:
        """Whether it ends now."""
        return self.end is None

    @property
    def query(self) -> dict[str, str]:
        """As it is written in an address."""
        if self.end is None:
            return {"range": self.name}
        return {"from": _seconds(self.end - self.duration_s), "to": _seconds(self.end)}


def range_from(query: Mapping[str, str]) -> TimeRange:
    """The range that an address asks for; the default for what cannot be understood.

    >>> range_from({"range": "6h"}).duration_s, range_from({"range": "word"}).name
    (21600.0, '15m')
    >>> range_from({"from": "100", "to": "1970-01-01T00:05"}).query
    {'from': '100', 'to': '300'}
    """
    begin, end = _moment(query.get("from", "")), _moment(query.get("to", ""))
    if begin is not None and end is not None and end - begin >= SHORTEST_S:
        return TimeRange(name=CUSTOM, duration_s=min(end - begin, LONGEST_S), end=end)
    name = query.get("range", "")
    name = name if name in RANGES_S else DEFAULT_RANGE
    return TimeRange(name=name, duration_s=RANGES_S[name])


def _moment(text: str) -> float | None:
    """Unix seconds.

    >>> _moment("12.5"), _moment("1970-01-01T00:01"), _moment("soon"), _moment("nan"), _moment("1e99")
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
