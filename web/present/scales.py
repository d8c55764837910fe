"""Axes, ticks and paths: pure geometry, the same as in `static/js/scales.js`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from web.history.ranges import TimeRange
from web.present import formats

WIDTH = 1000.0
"""Units across a plot, whatever its width in pixels."""

SHORTEST_S = 60.0
"""A younger history is drawn as if it were this long, so that the first seconds do not look like a day."""

_STEPS_S = (10, 20, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)

Place = TypeVar("Place", bound=tuple[float | None, ...])
"""Units from the left edge, and one or more from the top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of time on the x axis."""

    start: float
    end: float
    range_s: float | None
    """Length that was asked for, counted back from its end; None shows the whole run from its start."""
    is_moving: bool = True
    """Whether the end is now."""

    def place(self, at: float) -> float:
        """Units from the left edge."""
        return (at - self.start) / (self.end - self.start) * WIDTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The y axis."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, value: float, height: float) -> float:
        """Pixels from the top edge."""
        return (self.high - value) / (self.high - self.low) * height


def span_of(points_at: Sequence[float], span: TimeRange) -> Window:
    """The window over points at these times (Unix seconds, oldest first) of the range that was asked for."""
    if span.end is not None:
        return Window(start=span.end - span.duration_s, end=span.end, range_s=span.duration_s, is_moving=False)
    return window_of(points_at[0] if points_at else None, points_at[-1] if points_at else None, span.duration_s)


def window_of(first: float | None, last: float | None, range_s: float | None) -> Window:
    """The window over points from `first` to `last` (Unix seconds)."""
    end = last if last is not None else 0.0
    begin = first if first is not None else end
    if range_s is None:
        return Window(start=begin, end=max(end, begin + SHORTEST_S), range_s=None)
    start = min(max(begin, end - range_s), end - SHORTEST_S)
    return Window(start=start, end=end, range_s=range_s)


def y_axis(values: Sequence[float], *, at_least: float) -> Axis:
    """An axis with three to five round ticks that holds zero and every value.

    >>> y_axis([3.0, 17.5], at_least=1.0).ticks
    (0.0, 5.0, 10.0, 15.0, 20.0)
    """
    high = max([at_least, *values])
    low = min([0.0, *values])
    step = _round_step((high - low) / 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(low=first * step, high=last * step, ticks=tuple(index * step for index in range(first, last + 1)))


def x_ticks(window: Window) -> list[tuple[float, str]]:
    """Place in per cent of the width, and text, of at most six ticks: back from now, or on from the start."""
    span_s = window.end - window.start
    step_s = next((step for step in _STEPS_S if span_s / step <= 5), _STEPS_S[-1])
    steps = range(int(span_s / step_s + 1e-9) + 1)
    if window.range_s is None:
        return [
            (100 * index * step_s / span_s, formats.duration(index * step_s) if index else "start") for index in steps
        ]
    last = "now" if window.is_moving else "end"
    back = ((100 - 100 * index * step_s / span_s, _ago(index * step_s) if index else last) for index in steps)
    return list(back)[::-1]


def path(places: Sequence[tuple[float, float | None]]) -> str:
    """SVG path through the places; None lifts the pen."""
    parts: list[str] = []
    is_down = False
    for x, y in bends(places):
        if y is None:
            is_down = False
            continue
        parts.append(f"{'L' if is_down else 'M'}{x:.1f} {y:.1f}")
        is_down = True
    return "".join(parts)


def area(places: Sequence[tuple[float, float | None]], base: float) -> str:
    """SVG path of what lies between the places and the base line."""
    parts: list[str] = []
    stretch: list[tuple[float, float]] = []
    for x, y in (*bends(places), (0.0, None)):
        if y is not None:
            stretch.append((x, y))
            continue
        if len(stretch) > 1:
            inner = "".join(f"L{px:.1f} {py:.1f}" for px, py in stretch)
            parts.append(f"M{stretch[0][0]:.1f} {base:.1f}{inner}L{stretch[-1][0]:.1f} {base:.1f}Z")
        stretch = []
    return "".join(parts)


def bends(places: Sequence[Place]) -> list[Place]:
    """Without what lies on a level stretch: a line looks the same without it.

    >>> bends([(0, 5.0), (1, 5.0), (2, 5.0), (3, 7.0)])
    [(0, 5.0), (2, 5.0), (3, 7.0)]
    """
    last = len(places) - 1
    return [
        place
        for at, place in enumerate(places)
        if at in (0, last) or not places[at - 1][1:] == place[1:] == places[at + 1][1:]
    ]


def steps(places: Sequence[tuple[float, float | None]]) -> str:
    """SVG path of a value that stays until it changes; None lifts the pen."""
    parts: list[str] = []
    before: float | None = None
    for x, y in places:
        if y is not None:
            parts.append(f"M{x:.1f} {y:.1f}" if before is None else f"H{x:.1f}" + (f"V{y:.1f}" if y != before else ""))
        before = y
    return "".join(parts)


def between(places: Sequence[tuple[float, float | None, float | None]]) -> str:
    """SVG path of what lies between two lines, each place with its upper and lower end; None interrupts it."""
    parts: list[str] = []
    stretch: list[tuple[float, float, float]] = []
    for x, upper, lower in (*bends(places), (0.0, None, None)):
        if upper is not None and lower is not None:
            stretch.append((x, upper, lower))
            continue
        if len(stretch) > 1:
            there = "L".join(f"{px:.1f} {py:.1f}" for px, py, _ in stretch)
            back = "L".join(f"{px:.1f} {py:.1f}" for px, _, py in reversed(stretch))
            parts.append(f"M{there}L{back}Z")
        stretch = []
    return "".join(parts)


def dot(x: float, y: float) -> str:
    """SVG path of a dot: a stroke without length, whose round ends stay round however the plot is stretched."""
    return f"M{x:.1f} {y:.1f}h0.01"


def tick_text(value: float, kind: str) -> str:
    """A tick's label: short, since ticks are round."""
    if kind == "percent":
        return f"{value * 100:g}%"
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{round(value, 6):g}".replace("-", "\N{MINUS SIGN}")


def value_text(value: float | None, kind: str) -> str:
    """A value in a legend."""
    return _TEXTS[kind](value)


_TEXTS: dict[str, Callable[[float | None], str]] = {
    "reward": formats.reward,
    "figure": formats.figure,
    "rate": formats.rate,
    "percent": formats.percent,
    "count": formats.count,
    "ratio": formats.ratio,
    "dollars": formats.dollars,
}
"""How values read, by kind."""


def _round_step(rough: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(rough))
    return next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough * (1 - 1e-9))


def _ago(seconds: float) -> str:
    return f"\N{MINUS SIGN}{formats.duration(seconds)}"
