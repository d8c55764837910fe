"""Chart definitions, and their shapes for the first paint. `static/js/chart.js` draws the same from live points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from astraflow.contract.reports.report import StreamReport
from web.charts import scales

SERVER_DRAWN_ROWS = 150
"""Maximum number of points that the server draws; of a longer series it draws every second, third, ... point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series of a chart."""

    value: str
    """Name of a value of a point, as in `web.history.points.VALUES`."""
    label: str
    style: str
    """CSS class: `main`, `second` or `faint`."""
    is_area: bool = False
    format: str = ""
    """Format of this line's values in tables; empty for the format of the chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSpec:
    """Definition of a chart, without its data."""

    name: str
    label: str
    """Measured quantity with its unit."""
    lines: tuple[Line, ...]
    format: str
    """Format of the values: `reward`, `rate`, `percent`, `count`, `ratio` or `dollars`."""
    at_least: float
    """Lowest upper end of the axis, so that small changes look small."""
    limit_label: str = ""
    """Meaning of the threshold line; its position comes from the stream."""
    height: int = 152
    """Height of the plot, in CSS pixels."""
    server_drawn_rows: int = SERVER_DRAWN_ROWS


CHARTS = {
    spec.name: spec
    for spec in (
        ChartSpec(
            name="reward",
            label="Mean reward of rollouts, before filters",
            lines=(
                Line(value="reward", label="each step", style="faint"),
                Line(value="reward_average", label="10-step mean", style="main", is_area=True),
            ),
            format="reward",
            at_least=1.0,
        ),
        ChartSpec(
            name="rates",
            label="Groups per second",
            lines=(
                Line(value="produced", label="produced", style="main", is_area=True),
                Line(value="consumed", label="consumed", style="second"),
            ),
            format="rate",
            at_least=1.0,
        ),
        ChartSpec(
            name="wait",
            label="Share of a step the trainer waits",
            lines=(Line(value="wait", label="waiting", style="main", is_area=True),),
            format="percent",
            at_least=0.2,
            limit_label="fed",
        ),
        ChartSpec(
            name="buffer",
            label="Groups in the buffer",
            lines=(Line(value="buffered", label="buffered", style="main", is_area=True),),
            format="count",
            at_least=4.0,
            limit_label="one batch",
        ),
    )
}

FLEET_CHARTS = {
    spec.name: spec
    for spec in (
        ChartSpec(
            name="ratio",
            label="Requested capacity over demand",
            lines=(Line(value="ratio", label="capacity / demand", style="main", is_area=True),),
            format="ratio",
            at_least=1.5,
            limit_label="demand covered",
        ),
        ChartSpec(
            name="nodes",
            label="Nodes of all pools",
            lines=(
                Line(value="nodes", label="ready", style="main", is_area=True),
                Line(value="target", label="target", style="second"),
            ),
            format="count",
            at_least=2.0,
        ),
        ChartSpec(
            name="price",
            label="Dollars for a thousand accepted trajectories",
            lines=(Line(value="price", label="price", style="main", is_area=True),),
            format="dollars",
            at_least=0.0001,
        ),
    )
}
"""Charts of the whole fleet, independent of the policy."""

BALANCE = ChartSpec(
    name="balance",
    label="Demand and capacity, groups per second",
    lines=(
        Line(value="demand", label="demand", style="demand"),
        Line(value="ready", label="ready", style="ready"),
        Line(value="ordered", label="with pending nodes", style="pending"),
        Line(value="aimed", label="target", style="aimed"),
        Line(value="low", label="band from", style="band"),
        Line(value="high", label="band to", style="band"),
        Line(value="wait", label="trainer waits", style="waits", format="percent"),
    ),
    format="rate",
    at_least=1.0,
    height=264,
)
"""Chart of the overview; `web.overview.balance` draws it."""

LINE_CHARTS = {**CHARTS, **FLEET_CHARTS}
"""Charts that consist of lines over one axis."""

ALL_CHARTS = {**LINE_CHARTS, BALANCE.name: BALANCE}
"""All charts that have a page, a table and files."""

VERSION_LAG = "versions"
"""Name of the chart of nodes and the versions they serve; it has rows instead of lines."""

Row = tuple[float, Mapping[str, float | None]]
"""Time in Unix seconds, and values by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLine:
    """Shapes of a line, in a plot that is 1000 units wide and as high as the chart has pixels."""

    label: str
    style: str
    path: str
    area: str
    end: str
    """Path of the dot at the newest value; empty except for the main line."""
    latest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Chart, ready for the template."""

    spec: ChartSpec
    lines: tuple[DrawnLine, ...]
    y_ticks: tuple[tuple[float, str], ...]
    x_ticks: tuple[tuple[float, str], ...]
    """Position in per cent, and text."""
    limit_y: float | None
    limit: float | None
    window: scales.Window
    options: Mapping[str, Any] = field(default_factory=dict)
    """Values that the script needs to redraw the chart."""
    annotations: tuple[tuple[float, float, str], ...] = ()
    """Position, time (Unix seconds) and kind of each annotation."""


def draw(spec: ChartSpec, rows: Sequence[Row], window: scales.Window, *, limit: float | None) -> Drawing:
    """Draws the chart over these rows (oldest first), with a threshold line at `limit`."""
    shown = [(at, values) for at, values in rows if window.start <= at <= window.end]
    numbers = [values.get(line.value) for _, values in shown for line in spec.lines]
    axis = scales.y_axis([number for number in (*numbers, limit) if number is not None], at_least=spec.at_least)
    lines = tuple(_drawn(spec, line, shown, window, axis) for line in spec.lines)
    return Drawing(
        spec=spec,
        lines=lines,
        y_ticks=tuple((axis.y_of(tick, spec.height), scales.tick_text(tick, spec.format)) for tick in axis.ticks),
        x_ticks=tuple(scales.x_ticks(window)),
        limit_y=None if limit is None else axis.y_of(limit, spec.height),
        limit=limit,
        window=window,
        options=_options(spec, window, limit),
    )


def limit_of(spec: ChartSpec, stream: StreamReport, *, fed_below: float) -> float | None:
    """Returns the value of the chart's threshold line for this stream; None for a chart without one."""
    return {"wait": fed_below, "buffer": float(stream.batch_groups), "ratio": 1.0}.get(spec.name)


def thinned(rows: Sequence[Row], *, at_most: int = SERVER_DRAWN_ROWS) -> Sequence[Row]:
    """Returns every n-th row, so that at most about `at_most` remain for the first paint."""
    stride = max(1, -(-len(rows) // at_most))
    return rows[::-1][::stride][::-1]


def _drawn(spec: ChartSpec, line: Line, rows: Sequence[Row], window: scales.Window, axis: scales.Axis) -> DrawnLine:
    painted = thinned(rows, at_most=spec.server_drawn_rows)
    points = [
        (window.x_of(at), None if (value := values.get(line.value)) is None else axis.y_of(value, spec.height))
        for at, values in painted
    ]
    ends = [(x, y) for x, y in points if y is not None]
    drawn_values = [values[line.value] for _, values in rows if values.get(line.value) is not None]
    return DrawnLine(
        label=line.label,
        style=line.style,
        path=scales.path(points),
        area=scales.area(points, axis.y_of(0.0, spec.height)) if line.is_area else "",
        end=scales.dot(*ends[-1]) if ends and line.style == "main" else "",
        latest=scales.value_text(drawn_values[-1] if drawn_values else None, spec.format),
    )


def _options(spec: ChartSpec, window: scales.Window, limit: float | None) -> dict[str, Any]:
    return {
        "name": spec.name,
        "format": spec.format,
        "atLeast": spec.at_least,
        "height": spec.height,
        "limit": limit,
        "range": window.range_s,
        "end": None if window.is_moving or window.range_s is None else window.end,
        "lines": [{"value": line.value, "area": line.is_area} for line in spec.lines],
    }
