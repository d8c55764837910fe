"""Timeline of a trainer: intervals divided into computing, publishing and waiting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from web.charts.scales import WIDTH, Window
from web.components import formats

MAX_INTERVALS = 120
HEIGHT = 100.0
PARTS = ("compute", "publish", "wait")
"""Order from the bottom up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One part of an interval."""

    part: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Drawing of the timeline."""

    shares: tuple[Share, ...]
    insight: str
    legend: tuple[tuple[str, str], ...]
    """Each part with its share of the time."""
    intervals: tuple[tuple[float, float, Mapping[str, float]], ...]
    """Begin and end of each drawn interval (Unix seconds), and the seconds of its parts."""


def timeline(rows: Sequence[tuple[float, Mapping[str, float | None]]], window: Window) -> Timeline:
    """Draws the timeline from a policy's rows, whose seconds are cumulative."""
    known_points = [(at, seconds) for at, numbers in rows if (seconds := _seconds(numbers)) is not None]
    stride = max(1, len(known_points) // MAX_INTERVALS)
    ends = known_points[::stride] + (known_points[-1:] if known_points and (len(known_points) - 1) % stride else [])
    shares: list[Share] = []
    intervals: list[tuple[float, float, Mapping[str, float]]] = []
    sums = dict.fromkeys(PARTS, 0.0)
    begin, previous = ends[0] if ends else (0.0, sums)
    for end, current in ends[1:]:
        spent = {part: current[part] - previous[part] for part in PARTS}
        total = sum(spent.values())
        if min(spent.values()) < 0:  # the counters restarted with the run
            begin, previous = end, current
        if total <= 0 or min(spent.values()) < 0:
            continue  # no step ended
        if drawn := _shares(spent, total, begin, end, window):
            shares += drawn
            intervals.append((begin, end, spent))
        sums = {part: sums[part] + spent[part] for part in PARTS}
        begin, previous = end, current
    return Timeline(shares=tuple(shares), insight=_insight(sums), legend=_legend(sums), intervals=tuple(intervals))


def _seconds(numbers: Mapping[str, float | None]) -> dict[str, float] | None:
    seconds = {part: numbers.get(f"{part}_s") for part in PARTS}
    return (
        {part: value for part, value in seconds.items() if value is not None} if None not in seconds.values() else None
    )


def _shares(spent: dict[str, float], total: float, begin: float, end: float, window: Window) -> list[Share]:
    left, right = max(0.0, window.x_of(begin)), min(WIDTH, window.x_of(end))
    shares, floor = [], HEIGHT
    for part in PARTS:
        height = HEIGHT * spent[part] / total
        floor -= height
        if height and right > left:
            shares.append(Share(part=part, x=left, y=max(0.0, floor), width=right - left, height=height))
    return shares


def _legend(sums: dict[str, float]) -> tuple[tuple[str, str], ...]:
    total = sum(sums.values())
    return tuple((part, formats.percent(sums[part] / total) if total else formats.MISSING) for part in PARTS)


def _insight(sums: dict[str, float]) -> str:
    total = sum(sums.values())
    if not total:
        return "No step timed yet"
    computed, waited = (formats.percent(sums[part] / total) for part in ("compute", "wait"))
    return f"Computed {computed} of the time, waited {waited}"
