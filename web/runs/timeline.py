"""Time of a trainer: intervals between steps, divided into computing, publishing and waiting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from web.charts.panels import Panel, PanelView, Row, Series, panel_view
from web.components import formats

MAX_INTERVALS = 120
PARTS = ("compute", "publish", "wait")
"""Order from the bottom up."""

TIMELINE = Panel(
    name="timeline",
    label="Share of each interval of steps",
    series=tuple(
        Series(value=f"{part}_s", label=part, style=f"part part-{part}", format="percent", is_total=True)
        for part in PARTS
    ),
    format="percent",
    form="shares",
    height=176,
    reason="No step ended",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Time of a trainer by activity."""

    view: PanelView
    insight: str
    intervals: tuple[tuple[float, float, Mapping[str, float]], ...]
    """Begin and end of each interval (Unix seconds), and the seconds of its parts."""


def timeline(rows: Sequence[Row]) -> Timeline:
    """Returns the timeline of a policy's rows, whose seconds are cumulative."""
    known_points = [(at, seconds) for at, numbers in rows if (seconds := _seconds(numbers)) is not None]
    stride = max(1, len(known_points) // MAX_INTERVALS)
    ends = known_points[::stride] + (known_points[-1:] if known_points and (len(known_points) - 1) % stride else [])
    intervals: list[tuple[float, float, Mapping[str, float]]] = []
    begin, previous = ends[0] if ends else (0.0, dict.fromkeys(PARTS, 0.0))
    for end, current in ends[1:]:
        spent = {part: current[part] - previous[part] for part in PARTS}
        if min(spent.values()) < 0:  # the counters restarted with the run
            begin, previous = end, current
        elif sum(spent.values()) > 0:
            intervals.append((begin, end, spent))
            begin, previous = end, current
    sums = {part: sum(spent[part] for _, _, spent in intervals) for part in PARTS}
    total = sum(sums.values())
    shares = {part: formats.percent(sums[part] / total) if total else formats.MISSING for part in PARTS}
    return Timeline(
        view=replace(panel_view(TIMELINE, rows), latest=tuple(shares.values()), sparkline=""),
        insight=f"Computed {shares['compute']} of the time, waited {shares['wait']}" if total else "No step timed yet",
        intervals=tuple(intervals),
    )


def _seconds(numbers: Mapping[str, float | None]) -> dict[str, float] | None:
    seconds = {part: numbers.get(f"{part}_s") for part in PARTS}
    return (
        {part: value for part, value in seconds.items() if value is not None} if None not in seconds.values() else None
    )
