"""Which charts there are, and the shapes of their first paint. `static/js/chart.js` draws the same from live points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from astraflow.contract.reports import StreamReport
from web.present import scales
from web.present.findings import FED_BELOW

PAINTED_ROWS = 150
"""Of a longer series the server paints every second, third, ... point, until the script draws all of them."""


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
    """How its values read in tables, where that is not how the chart's do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSpec:
    """What is drawn, apart from the data."""

    name: str
    label: str
    """What is measured, with its unit."""
    lines: tuple[Line, ...]
    format: str
    """How values read: `reward`, `rate`, `percent`, `count`, `ratio` or `dollars`."""
    at_least: float
    """The axis reaches at least this high, so that little movement does not look like much."""
    limit_label: str = ""
    """What the threshold line means; its place comes from the stream."""
    height: int = 152
    """Of the plot, in CSS pixels."""
    painted_rows: int = PAINTED_ROWS


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

TRAINING_CHARTS = {
    spec.name: spec
    for spec in (
        ChartSpec(
            name="loss",
            label="Loss of each step",
            lines=(Line(value="loss", label="loss", style="main"),),
            format="figure",
            at_least=0.001,
        ),
        ChartSpec(
            name="length",
            label="Tokens written for each row of a batch",
            lines=(Line(value="length", label="tokens", style="main", is_area=True),),
            format="rate",
            at_least=4.0,
        ),
        ChartSpec(
            name="kl",
            label="Divergence from the reference policy, or from the one that wrote the rollouts",
            lines=(Line(value="kl", label="KL", style="main"),),
            format="figure",
            at_least=0.0001,
        ),
    )
}
"""What a trainer says of its steps."""

FLEET_CHARTS = {
    spec.name: spec
    for spec in (
        ChartSpec(
            name="ratio",
            label="Ordered capacity over demand",
            lines=(Line(value="ratio", label="capacity / demand", style="main", is_area=True),),
            format="ratio",
            at_least=1.5,
            limit_label="all that is needed",
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
"""About the fleet as a whole, whatever the policy."""

BALANCE = ChartSpec(
    name="balance",
    label="Demand and capacity, groups per second",
    lines=(
        Line(value="demand", label="demand", style="demand"),
        Line(value="ready", label="ready", style="ready"),
        Line(value="ordered", label="with pending", style="pending"),
        Line(value="aimed", label="target", style="aimed"),
        Line(value="low", label="band from", style="band"),
        Line(value="high", label="band to", style="band"),
        Line(value="wait", label="trainer waits", style="waits", format="percent"),
    ),
    format="rate",
    at_least=1.0,
    height=264,
)
"""The chart of the overview; `web.present.balance` draws it."""

LINED = {**CHARTS, **TRAINING_CHARTS, **FLEET_CHARTS}
"""Those that are lines over one axis."""

KNOWN = {**LINED, BALANCE.name: BALANCE}
"""Every chart that has a page, a table and files."""

LADDER = "versions"
"""Name of the chart that shows nodes and the versions they serve; it has rows instead of lines."""

Row = tuple[float, Mapping[str, float | None]]
"""Unix seconds, and values by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLine:
    """A line's shapes in a plot 1000 units wide and as many high as the chart has pixels."""

    label: str
    style: str
    path: str
    area: str
    end: str
    """Path of the dot at the newest value; only the main line has one."""
    latest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A chart, ready for the template."""

    spec: ChartSpec
    lines: tuple[DrawnLine, ...]
    y_ticks: tuple[tuple[float, str], ...]
    x_ticks: tuple[tuple[float, str], ...]
    """Place in per cent, and text."""
    limit_y: float | None
    limit: float | None
    window: scales.Window
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the script needs to draw it again."""
    pins: tuple[tuple[float, float, str], ...] = ()
    """Place, Unix seconds and kind of what happened meanwhile."""


def draw(spec: ChartSpec, rows: Sequence[Row], window: scales.Window, *, limit: float | None) -> Drawing:
    """The chart over these rows (oldest first), with a threshold line at `limit`."""
    shown = [(at, values) for at, values in rows if window.start <= at <= window.end]
    numbers = [values.get(line.value) for _, values in shown for line in spec.lines]
    axis = scales.y_axis([number for number in (*numbers, limit) if number is not None], at_least=spec.at_least)
    lines = tuple(_drawn(spec, line, shown, window, axis) for line in spec.lines)
    return Drawing(
        spec=spec,
        lines=lines,
        y_ticks=tuple((axis.place(tick, spec.height), scales.tick_text(tick, spec.format)) for tick in axis.ticks),
        x_ticks=tuple(scales.x_ticks(window)),
        limit_y=None if limit is None else axis.place(limit, spec.height),
        limit=limit,
        window=window,
        options=_options(spec, window, limit),
    )


def limit_of(spec: ChartSpec, stream: StreamReport) -> float | None:
    """Where the chart's threshold line is for this stream."""
    return {"wait": FED_BELOW, "buffer": float(stream.batch_groups), "ratio": 1.0}.get(spec.name)


def thinned(rows: Sequence[Row], *, at_most: int = PAINTED_ROWS) -> Sequence[Row]:
    """Few enough for the first paint; the script draws every one."""
    stride = max(1, -(-len(rows) // at_most))
    return rows[::-1][::stride][::-1]


def _drawn(spec: ChartSpec, line: Line, rows: Sequence[Row], window: scales.Window, axis: scales.Axis) -> DrawnLine:
    painted = thinned(rows, at_most=spec.painted_rows)
    places = [
        (window.place(at), None if (value := values.get(line.value)) is None else axis.place(value, spec.height))
        for at, values in painted
    ]
    ends = [(x, y) for x, y in places if y is not None]
    known = [values[line.value] for _, values in rows if values.get(line.value) is not None]
    return DrawnLine(
        label=line.label,
        style=line.style,
        path=scales.path(places),
        area=scales.area(places, axis.place(0.0, spec.height)) if line.is_area else "",
        end=scales.dot(*ends[-1]) if ends and line.style == "main" else "",
        latest=scales.value_text(known[-1] if known else None, spec.format),
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
