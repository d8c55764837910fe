"""Balance chart of the overview: demand against capacity, and the trainer's wait below it.

`static/js/balance.js` draws the same shapes from live points.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from web.charts import charts, scales
from web.components import formats
from web.state.annotations import Annotation, AnnotationKind

WAIT_HEIGHT = 44
"""Height of the wait bars, in pixels."""

WAIT_AXIS_STEP = 0.25
BARS = 120
MAX_GAP_S = 90.0
"""Maximum time that one point covers. Points are at most a minute apart; a longer distance is a gap."""
ANNOTATION_SLOTS = 90
"""Annotations of one kind that fall into the same ninetieth of the width share one mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationMark:
    """Mark for the annotations of one kind in one slot of the time axis."""

    x: str
    """Per cent of the width."""
    kind: AnnotationKind
    ordinal: int
    """Ordinal of the newest annotation."""
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceChart:
    """Chart, ready for the template."""

    paths: dict[str, str]
    """SVG paths by part: band, ready, edge, pending, demand, aimed, fed, waits, published."""
    has_demand: bool
    y_ticks: tuple[tuple[float, str], ...]
    x_ticks: Sequence[tuple[float, str]]
    wait_ticks: tuple[tuple[float, str], ...]
    """Ticks of the wait bars: their top and the limit."""
    limit_y: float
    """Position of the limit in the wait bars; above it the trainer does not count as fed."""
    annotations: tuple[AnnotationMark, ...]
    latest: dict[str, str]
    height: int = charts.BALANCE.height
    wait_height: int = WAIT_HEIGHT
    options: dict[str, Any] = field(default_factory=dict)
    """Values that the script needs to redraw the chart."""


def balance(
    rows: Sequence[charts.Row], window: scales.Window, annotations: Sequence[Annotation], *, fed_below: float
) -> BalanceChart:
    """Draws the chart over rows of one policy, oldest first. fed_below: wait fraction of a fed trainer."""
    shown = [(at, values) for at, values in rows if window.start <= at <= window.end]
    axis = _axis(shown)
    height = charts.BALANCE.height
    painted = charts.thinned(shown)
    lines = {
        name: [(window.x_of(at), _y(values.get(name), axis, height)) for at, values in painted]
        for name in ("demand", "ready", "ordered", "low", "high", "aimed")
    }
    wait_axis = _wait_axis(shown)
    fed, waits = _bars(shown, window, wait_axis, fed_below)
    return BalanceChart(
        paths={
            "band": _between(lines["high"], lines["low"]),
            "ready": scales.area(lines["ready"], height),
            "edge": scales.path(lines["ready"]),
            "pending": _between(lines["ordered"], lines["ready"]),
            "demand": scales.path(lines["demand"]),
            "aimed": scales.steps(lines["aimed"]),
            "fed": fed,
            "waits": waits,
            "published": published(shown, window),
        },
        has_demand=any(values.get("demand") is not None for _, values in shown),
        y_ticks=tuple((axis.y_of(tick, height), scales.tick_text(tick, "rate")) for tick in axis.ticks),
        x_ticks=scales.x_ticks(window),
        wait_ticks=tuple(
            (wait_axis.y_of(tick, WAIT_HEIGHT), scales.tick_text(tick, "percent"))
            for tick in (wait_axis.high, fed_below)
        ),
        limit_y=wait_axis.y_of(fed_below, WAIT_HEIGHT),
        annotations=annotation_marks(annotations, window),
        latest=_latest(shown),
        options={
            "range": window.range_s,
            "end": None if window.is_moving else window.end,
            "height": height,
            "waitHeight": WAIT_HEIGHT,
            "fedBelow": fed_below,
        },
    )


def annotation_marks(annotations: Sequence[Annotation], window: scales.Window) -> tuple[AnnotationMark, ...]:
    """Returns the marks of the window; annotations of one kind in one slot share a mark."""
    slots: dict[tuple[AnnotationKind, int], list[Annotation]] = {}
    for annotation in annotations:
        if window.start <= annotation.at <= window.end:
            slot = int(window.x_of(annotation.at) / scales.WIDTH * ANNOTATION_SLOTS)
            slots.setdefault((annotation.kind, slot), []).append(annotation)
    return tuple(_mark(kind, in_slot, window) for (kind, _), in_slot in slots.items())


def published(rows: Sequence[charts.Row], window: scales.Window) -> str:
    """Returns the SVG path with a tick for each bar in which the version rose."""
    bars: set[int] = set()
    previous: float | None = None
    for at, values in rows:
        version = values.get("version")
        if previous is not None and version is not None and version > previous:
            bars.add(_bar_at(at, window))
        previous = version
    return "".join(f"M{(bar + 0.5) * scales.WIDTH / BARS:.1f} 0v5" for bar in sorted(bars))


def published_versions(rows: Sequence[charts.Row], window: scales.Window) -> list[tuple[int, float]]:
    """Returns each published version and the time it was first seen (Unix seconds), newest first.

    Of several versions published between two points only the last is listed.
    """
    versions: list[tuple[int, float]] = []
    previous: float | None = None
    for at, values in rows:
        version = values.get("version")
        if previous is not None and version is not None and version > previous and window.start <= at <= window.end:
            versions.append((int(version), at))
        previous = version
    return versions[::-1]


def _mark(kind: AnnotationKind, annotations: Sequence[Annotation], window: scales.Window) -> AnnotationMark:
    newest = annotations[-1]
    more = f" (and {len(annotations) - 1} before)" if len(annotations) > 1 else ""
    return AnnotationMark(
        x=f"{window.x_of(newest.at) / scales.WIDTH * 100:.2f}%",
        kind=kind,
        ordinal=newest.ordinal,
        label=newest.text + more,
    )


def _axis(rows: Sequence[charts.Row]) -> scales.Axis:
    names = ("demand", "ordered", "high", "aimed", "ready")
    numbers = [value for _, values in rows for name in names if (value := values.get(name)) is not None]
    return scales.y_axis(numbers, at_least=charts.BALANCE.at_least)


def _wait_axis(rows: Sequence[charts.Row]) -> scales.Axis:
    """Returns the axis of the wait bars; it ends at a whole quarter, at least one, so that a short wait looks short."""
    waits = [wait for _, values in rows if (wait := values.get("wait")) is not None]
    return scales.Axis(low=0.0, high=max(1, ceil(max(waits, default=0.0) / WAIT_AXIS_STEP)) * WAIT_AXIS_STEP, ticks=())


def _bars(rows: Sequence[charts.Row], window: scales.Window, axis: scales.Axis, fed_below: float) -> tuple[str, str]:
    """Returns the SVG paths of the bars up to the fed limit and above it. A bar is the mean wait of its slot."""
    slots: dict[int, list[float]] = {}
    previous_at = 0.0
    for at, values in rows:
        wait = values.get("wait")
        if wait is not None:
            last = _bar_at(at, window)
            first = min(last, _bar_at(previous_at, window) + 1) if at - previous_at <= MAX_GAP_S else last
            for slot in range(first, last + 1):
                slots.setdefault(slot, []).append(wait)
        previous_at = at
    width = scales.WIDTH / BARS
    fed: list[str] = []
    waits: list[str] = []
    for slot, slot_waits in sorted(slots.items()):
        mean = sum(slot_waits) / len(slot_waits)
        top = min(axis.y_of(mean, WAIT_HEIGHT), WAIT_HEIGHT - 1.0)
        bar = f"M{slot * width + 0.6:.1f} {WAIT_HEIGHT}V{top:.1f}h{width - 1.2:.1f}V{WAIT_HEIGHT}Z"
        (fed if mean <= fed_below else waits).append(bar)
    return "".join(fed), "".join(waits)


def _bar_at(at: float, window: scales.Window) -> int:
    return min(BARS - 1, int(window.x_of(at) / scales.WIDTH * BARS))


def _latest(rows: Sequence[charts.Row]) -> dict[str, str]:
    values = rows[-1][1] if rows else {}
    ready, ordered = values.get("ready"), values.get("ordered")
    pending = max(0.0, ordered - ready) if ready is not None and ordered is not None else None
    return {
        "demand": formats.rate(values.get("demand")),
        "ready": formats.rate(ready),
        "pending": formats.rate(pending),
        "aimed": formats.rate(values.get("aimed")),
        "wait": formats.percent(values.get("wait")),
    }


def _y(value: float | None, axis: scales.Axis, height: float) -> float | None:
    return None if value is None else axis.y_of(value, height)


def _between(upper: Sequence[tuple[float, float | None]], lower: Sequence[tuple[float, float | None]]) -> str:
    return scales.between([(x, top, bottom) for (x, top), (_, bottom) in zip(upper, lower, strict=True)])
