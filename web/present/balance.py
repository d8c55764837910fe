"""The chart of the overview: what is needed against what there is, and when the trainer waited for it.

`static/js/balance.js` draws the same shapes from live points.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from web.feed.pins import Pin, PinKind
from web.present import charts, formats, scales
from web.present.findings import FED_BELOW

WAIT_HEIGHT = 44
"""Pixels of the bars below."""

QUARTER = 0.25
BARS = 120
LONGEST_GAP_S = 90.0
"""A point stands for the time since the one before it, which is a minute at most; more is a hole."""
PIN_PLACES = 90
"""Pins of one kind that would stand closer than a ninetieth of the width become one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinMark:
    """Events of one kind at about the same time."""

    x: str
    """In per cent of the width."""
    kind: PinKind
    ordinal: int
    """Of the newest of them."""
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The chart, ready for the template."""

    paths: dict[str, str]
    """By part: band, ready, pending, demand, aimed, fed, waits, published."""
    has_demand: bool
    y_ticks: tuple[tuple[float, str], ...]
    x_ticks: Sequence[tuple[float, str]]
    wait_ticks: tuple[tuple[float, str], ...]
    """Of the bars below: their top, and the limit."""
    limit_y: float
    """Of the bars: above it the trainer does not count as fed."""
    pins: tuple[PinMark, ...]
    latest: dict[str, str]
    height: int = charts.BALANCE.height
    wait_height: int = WAIT_HEIGHT
    options: dict[str, Any] = field(default_factory=dict)
    """What the script needs to draw it again."""


def balance(rows: Sequence[charts.Row], window: scales.Window, pins: Sequence[Pin]) -> Balance:
    """The chart over rows of one policy, oldest first."""
    shown = [(at, values) for at, values in rows if window.start <= at <= window.end]
    axis = _axis(shown)
    height = charts.BALANCE.height
    painted = charts.thinned(shown)
    places = {
        name: [(window.place(at), _place(values.get(name), axis, height)) for at, values in painted]
        for name in ("demand", "ready", "ordered", "low", "high", "aimed")
    }
    wait_axis = _wait_axis(shown)
    fed, waits = _bars(shown, window, wait_axis)
    return Balance(
        paths={
            "band": _between(places["high"], places["low"]),
            "ready": scales.area(places["ready"], height),
            "edge": scales.path(places["ready"]),
            "pending": _between(places["ordered"], places["ready"]),
            "demand": scales.path(places["demand"]),
            "aimed": scales.steps(places["aimed"]),
            "fed": fed,
            "waits": waits,
            "published": published(shown, window),
        },
        has_demand=any(values.get("demand") is not None for _, values in shown),
        y_ticks=tuple((axis.place(tick, height), scales.tick_text(tick, "rate")) for tick in axis.ticks),
        x_ticks=scales.x_ticks(window),
        wait_ticks=tuple(
            (wait_axis.place(tick, WAIT_HEIGHT), scales.tick_text(tick, "percent"))
            for tick in (wait_axis.high, FED_BELOW)
        ),
        limit_y=wait_axis.place(FED_BELOW, WAIT_HEIGHT),
        pins=marks(pins, window),
        latest=_latest(shown),
        options={
            "range": window.range_s,
            "end": None if window.is_moving else window.end,
            "height": height,
            "waitHeight": WAIT_HEIGHT,
            "fedBelow": FED_BELOW,
        },
    )


def marks(pins: Sequence[Pin], window: scales.Window) -> tuple[PinMark, ...]:
    """Pins of the window, those of one kind that would cover each other as one."""
    places: dict[tuple[PinKind, int], list[Pin]] = {}
    for pin in pins:
        if window.start <= pin.at <= window.end:
            place = int(window.place(pin.at) / scales.WIDTH * PIN_PLACES)
            places.setdefault((pin.kind, place), []).append(pin)
    return tuple(_mark(kind, found, window) for (kind, _), found in places.items())


def published(rows: Sequence[charts.Row], window: scales.Window) -> str:
    """SVG path of a tick wherever another version was there; those of one place are one tick."""
    places: set[int] = set()
    before: float | None = None
    for at, values in rows:
        version = values.get("version")
        if before is not None and version is not None and version > before:
            places.add(_bar_at(at, window))
        before = version
    return "".join(f"M{(place + 0.5) * scales.WIDTH / BARS:.1f} 0v5" for place in sorted(places))


def publishes(rows: Sequence[charts.Row], window: scales.Window) -> list[tuple[int, float]]:
    """The same as a list, newest first: each version that was published, and when it was first seen.

    Of versions that came within one point the last is there.
    """
    found: list[tuple[int, float]] = []
    before: float | None = None
    for at, values in rows:
        version = values.get("version")
        if before is not None and version is not None and version > before and window.start <= at <= window.end:
            found.append((int(version), at))
        before = version
    return found[::-1]


def _mark(kind: PinKind, found: Sequence[Pin], window: scales.Window) -> PinMark:
    newest = found[-1]
    more = f" (and {len(found) - 1} before)" if len(found) > 1 else ""
    return PinMark(
        x=f"{window.place(newest.at) / scales.WIDTH * 100:.2f}%",
        kind=kind,
        ordinal=newest.ordinal,
        label=newest.text + more,
    )


def _axis(rows: Sequence[charts.Row]) -> scales.Axis:
    names = ("demand", "ordered", "high", "aimed", "ready")
    numbers = [value for _, values in rows for name in names if (value := values.get(name)) is not None]
    return scales.y_axis(numbers, at_least=charts.BALANCE.at_least)


def _wait_axis(rows: Sequence[charts.Row]) -> scales.Axis:
    """To a whole quarter, one at least: a round number for its top, and a little waiting does not look like much."""
    waits = [wait for _, values in rows if (wait := values.get("wait")) is not None]
    return scales.Axis(low=0.0, high=max(1, ceil(max(waits, default=0.0) / QUARTER)) * QUARTER, ticks=())


def _bars(rows: Sequence[charts.Row], window: scales.Window, axis: scales.Axis) -> tuple[str, str]:
    """SVG paths of the bars at most at, and above, what counts as fed: the mean wait of each stretch."""
    stretches: dict[int, list[float]] = {}
    before = 0.0
    for at, values in rows:
        wait = values.get("wait")
        if wait is not None:
            last = _bar_at(at, window)
            first = min(last, _bar_at(before, window) + 1) if at - before <= LONGEST_GAP_S else last
            for place in range(first, last + 1):
                stretches.setdefault(place, []).append(wait)
        before = at
    width = scales.WIDTH / BARS
    fed: list[str] = []
    waits: list[str] = []
    for place, found in sorted(stretches.items()):
        mean = sum(found) / len(found)
        top = min(axis.place(mean, WAIT_HEIGHT), WAIT_HEIGHT - 1.0)
        bar = f"M{place * width + 0.6:.1f} {WAIT_HEIGHT}V{top:.1f}h{width - 1.2:.1f}V{WAIT_HEIGHT}Z"
        (fed if mean <= FED_BELOW else waits).append(bar)
    return "".join(fed), "".join(waits)


def _bar_at(at: float, window: scales.Window) -> int:
    return min(BARS - 1, int(window.place(at) / scales.WIDTH * BARS))


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


def _place(value: float | None, axis: scales.Axis, height: float) -> float | None:
    return None if value is None else axis.place(value, height)


def _between(upper: Sequence[tuple[float, float | None]], lower: Sequence[tuple[float, float | None]]) -> str:
    return scales.between([(x, top, bottom) for (x, top), (_, bottom) in zip(upper, lower, strict=True)])
