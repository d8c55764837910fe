"""Line plots as SVG, for runs and benchmarks, without a plotting package."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 440, 70, 210, 20, 50
COLOURS = ("#555555", "#c0392b", "#e08e0b", "#2f855a", "#2b6cb0", "#7b3fa0", "#00838f", "#8d5524")
DASHES = ("", "6 3", "2 3", "10 4", "8 3 2 3", "1 2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A named line."""

    name: str
    points: tuple[tuple[float, float], ...]


def line_plot(curves: Sequence[Curve], *, x_label: str, y_label: str) -> str:
    """Returns the curves over axes with round ticks, with a legend next to the plot."""
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    frame = _Frame(x=(0.0, max(xs)), y=(min(ys), max(ys)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *_axes(frame, x_label, y_label),
    ]
    for number, curve in enumerate(curves):
        path = " ".join(f"{frame.left(x):.1f},{frame.top(y):.1f}" for x, y in curve.points)
        style = f'stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="2" '
        style += f'stroke-dasharray="{DASHES[number % len(DASHES)]}"'
        line = TOP + 16 + 22 * number
        parts += [
            f'<polyline points="{path}" fill="none" {style}/>',
            f'<line x1="{WIDTH - RIGHT + 16}" x2="{WIDTH - RIGHT + 46}" y1="{line - 4}" y2="{line - 4}" {style}/>',
            f'<text x="{WIDTH - RIGHT + 52}" y="{line}">{escape(curve.name)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    x: tuple[float, float]
    y: tuple[float, float]

    def left(self, value: float) -> float:
        return LEFT + (value - self.x[0]) / ((self.x[1] - self.x[0]) or 1) * (WIDTH - LEFT - RIGHT)

    def top(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.y[0]) / ((self.y[1] - self.y[0]) or 1) * (HEIGHT - TOP - BOTTOM)


def _axes(frame: _Frame, x_label: str, y_label: str) -> list[str]:
    parts = []
    for y in _ticks(*frame.y):
        across = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{frame.top(y):.1f}" y2="{frame.top(y):.1f}"'
        parts += [
            f'<line {across} stroke="#dddddd"/>',
            f'<text x="{LEFT - 8}" y="{frame.top(y) + 4:.1f}" text-anchor="end">{y:.3g}</text>',
        ]
    for x in _ticks(*frame.x):
        parts.append(f'<text x="{frame.left(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:,.7g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [
        *parts,
        f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>',
    ]


def _ticks(low: float, high: float) -> list[float]:
    """Returns about five round numbers between `low` and `high`."""
    span = (high - low) or 1
    power = 10 ** math.floor(math.log10(span / 5))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= 6)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
