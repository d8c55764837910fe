"""Axes, ticks and paths: pure geometry, identical to `static/js/scales.js`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from web.components import formats
from web.history.time_ranges import TimeRange

WIDTH = 1000.0
"""Width of a plot in units, independent of its width in pixels."""

MIN_WINDOW_S = 60.0
"""Minimum length of a window, in seconds, so that the first seconds of a run do not fill the chart."""

_STEPS_S = (10, 20, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)

PlotPoint = TypeVar("PlotPoint", bound=tuple[float | None, ...])
"""Units from the left edge, and one or more distances from the top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Time range of the x axis."""

    start: float
    end: float
    range_s: float | None
    """Requested length, counted back from the end; None shows the whole run from its start."""
    is_moving: bool = True
    """Whether the end moves with the current time."""

    def x_of(self, at: float) -> float:
        """Returns the units from the left edge."""
        return (at - self.start) / (self.end - self.start) * WIDTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The y axis."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def y_of(self, value: float, height: float) -> float:
        """Returns the pixels from the top edge."""
        return (self.high - value) / (self.high - self.low) * height


def span_of(points_at: Sequence[float], span: TimeRange) -> Window:
    """Returns the window of a requested range. points_at: times of the points, Unix seconds, oldest first."""
    if span.end is not None:
        return Window(start=span.end - span.duration_s, end=span.end, range_s=span.duration_s, is_moving=False)
    return window_of(points_at[0] if points_at else None, points_at[-1] if points_at else None, span.duration_s)


def window_of(first: float | None, last: float | None, range_s: float | None) -> Window:
    """Returns the window over points from `first` to `last` (Unix seconds)."""
    end = last if last is not None else 0.0
    begin = first if first is not None else end
    if range_s is None:
        return Window(start=begin, end=max(end, begin + MIN_WINDOW_S), range_s=None)
    start = min(max(begin, end - range_s), end - MIN_WINDOW_S)
    return Window(start=start, end=end, range_s=range_s)


def y_axis(values: Sequence[float], *, at_least: float) -> Axis:
    """Returns an axis with three to five round ticks that includes zero and every value.

    >>> y_axis([3.0, 17.5], at_least=1.0).ticks
    (0.0, 5.0, 10.0, 15.0, 20.0)
    """
    high = max([at_least, *values])
    low = min([0.0, *values])
    step = _round_step((high - low) / 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(low=first * step, high=last * step, ticks=tuple(index * step for index in range(first, last + 1)))


def fitted_axis(values: Sequence[float]) -> Axis:
    """Returns an axis from the lowest to the highest value, with ticks at both; around a constant value, at this value.

    >>> fitted_axis([0.2, 0.7]).ticks, fitted_axis([3.0]).ticks
    ((0.2, 0.7), (3.0,))
    """
    low, high = min(values, default=0.0), max(values, default=0.0)
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return Axis(low=low, high=high, ticks=(low, high))
    margin = abs(high) / 10 or 1.0
    return Axis(low=high - margin, high=high + margin, ticks=(high,))


def round_axis(values: Sequence[float]) -> Axis:
    """Returns an axis with three to six round ticks around all values; it need not include zero.

    >>> round_axis([1.52, 1.58]).ticks[0], round_axis([1.52, 1.58]).ticks[-1]
    (1.52, 1.58)
    """
    fitted = fitted_axis(values)
    step = _round_step((fitted.high - fitted.low) / 4)
    first, last = math.floor(fitted.low / step + 1e-9), math.ceil(fitted.high / step - 1e-9)
    return Axis(low=first * step, high=last * step, ticks=tuple(index * step for index in range(first, last + 1)))


def x_ticks(window: Window) -> list[tuple[float, str]]:
    """Returns at most six ticks, back from now or on from the start: position in per cent of the width, and text."""
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


def step_ticks(window: Window) -> list[tuple[float, str]]:
    """Returns at most seven ticks at round steps: position in per cent of the width, and text.

    >>> step_ticks(Window(start=3.0, end=21.0, range_s=None))[0][1], step_ticks(Window(start=0, end=2, range_s=None))
    ('5', [(0.0, '0'), (50.0, '1'), (100.0, '2')])
    """
    span = window.end - window.start
    size = max(1, math.ceil(_round_step(span / 6)))
    ticks = range(math.ceil(window.start / size) * size, math.floor(window.end) + 1, size)
    return [(100 * (tick - window.start) / span, formats.count(tick)) for tick in ticks]


def path(places: Sequence[tuple[float, float | None]]) -> str:
    """Returns the SVG path through the points; None interrupts it."""
    parts: list[str] = []
    is_down = False
    for x, y in without_level_points(places):
        if y is None:
            is_down = False
            continue
        parts.append(f"{'L' if is_down else 'M'}{x:.1f} {y:.1f}")
        is_down = True
    return "".join(parts)


def area(places: Sequence[tuple[float, float | None]], base: float) -> str:
    """Returns the SVG path of the area between the points and the base line."""
    parts: list[str] = []
    segment: list[tuple[float, float]] = []
    for x, y in (*without_level_points(places), (0.0, None)):
        if y is not None:
            segment.append((x, y))
            continue
        if len(segment) > 1:
            inner = "".join(f"L{px:.1f} {py:.1f}" for px, py in segment)
            parts.append(f"M{segment[0][0]:.1f} {base:.1f}{inner}L{segment[-1][0]:.1f} {base:.1f}Z")
        segment = []
    return "".join(parts)


def without_level_points(places: Sequence[PlotPoint]) -> list[PlotPoint]:
    """Removes the inner points of level segments, which do not change the line.

    >>> without_level_points([(0, 5.0), (1, 5.0), (2, 5.0), (3, 7.0)])
    [(0, 5.0), (2, 5.0), (3, 7.0)]
    """
    last = len(places) - 1
    return [
        point
        for index, point in enumerate(places)
        if index in (0, last) or not places[index - 1][1:] == point[1:] == places[index + 1][1:]
    ]


def steps(places: Sequence[tuple[float, float | None]]) -> str:
    """Returns the SVG path of a value that stays constant until it changes; None interrupts it."""
    parts: list[str] = []
    previous: float | None = None
    for x, y in places:
        if y is not None:
            parts.append(
                f"M{x:.1f} {y:.1f}" if previous is None else f"H{x:.1f}" + (f"V{y:.1f}" if y != previous else "")
            )
        previous = y
    return "".join(parts)


def between(places: Sequence[tuple[float, float | None, float | None]]) -> str:
    """Returns the SVG path of the area between two lines: points with upper and lower end; None interrupts it."""
    parts: list[str] = []
    segment: list[tuple[float, float, float]] = []
    for x, upper, lower in (*without_level_points(places), (0.0, None, None)):
        if upper is not None and lower is not None:
            segment.append((x, upper, lower))
            continue
        if len(segment) > 1:
            forward = "L".join(f"{px:.1f} {py:.1f}" for px, py, _ in segment)
            back = "L".join(f"{px:.1f} {py:.1f}" for px, _, py in reversed(segment))
            parts.append(f"M{forward}L{back}Z")
        segment = []
    return "".join(parts)


def dot(x: float, y: float) -> str:
    """Returns the SVG path of a dot: a stroke of no length, whose round ends stay round in a stretched plot."""
    return f"M{x:.1f} {y:.1f}h0.01"


def tick_text(value: float, kind: str) -> str:
    """Returns the label of a tick, which is short because ticks are round."""
    if kind in ("percent", "share"):
        return f"{round(value * 100, 6):g}%"
    if abs(value) < 0.001:
        return formats.figure(value)
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{round(value, 6):g}".replace("-", "\N{MINUS SIGN}")


def end_text(value: float, kind: str) -> str:
    """Returns the label of an end of a fitted axis: the value with three significant digits, without its noun."""
    text = value_text(value, kind) if kind in ("share", "seconds") else formats.figure(value)
    return text.replace("\N{NARROW NO-BREAK SPACE}", "")


def value_text(value: float | None, kind: str) -> str:
    """Returns a value as a legend shows it. kind: one of `_TEXTS`, or the noun of the unit."""
    return _TEXTS[kind](value) if kind in _TEXTS else formats.with_unit(value, kind)


_TEXTS: dict[str, Callable[[float | None], str]] = {
    "reward": formats.reward,
    "figure": formats.figure,
    "share": formats.share,
    "seconds": formats.seconds,
    "rate": formats.rate,
    "percent": formats.percent,
    "count": formats.count,
    "ratio": formats.ratio,
    "dollars": formats.dollars,
}
"""Formatter of each kind of value."""


def _round_step(rough: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(rough))
    return next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough * (1 - 1e-9))


def _ago(seconds: float) -> str:
    return f"\N{MINUS SIGN}{formats.duration(seconds)}"
