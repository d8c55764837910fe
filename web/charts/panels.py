"""Panels: what a chart shows. `static/js/plot.js` draws every panel from columns of numbers with uPlot."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from astraflow.contract.reports.report import StreamReport
from astraflow.contract.training_metrics import MetricUnit, TrainingMetric
from web.components import formats

POINTS = "points"
"""Table of a page with the values of one policy and of the fleet by the second."""

Form = Literal["lines", "shares", "strips"]
"""Lines over one axis; shares stacked up to 100 per cent; a strip for each node, coloured by its version lag."""

SPARKLINE_POINTS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of a panel."""

    value: str
    """Column of its table."""
    label: str
    style: str = "main"
    """CSS class of its swatch, which has the colour, the fill and the dashes."""
    draw: Literal["line", "step"] = "line"
    format: str = ""
    """Format of its values; empty for the format of the panel."""
    table: str = ""
    """Table of its values; empty for the table of the panel."""
    note: str = ""
    """Tooltip that describes the series; empty if the label suffices."""
    href: str = ""
    """Page of the series; empty for none."""
    is_total: bool = False
    """Whether the column is a total since the start; the panel shows its differences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Definition of a chart, without its data."""

    name: str
    label: str
    """Measured quantity with its unit."""
    series: tuple[Series, ...]
    format: str
    """Format of the values, as for `value_text`."""
    table: str = POINTS
    form: Form = "lines"
    bands: tuple[tuple[str, str, str, str], ...] = ()
    """Areas between two series: upper value, lower value, style and label."""
    from_zero: bool = False
    """Whether the axis includes zero; otherwise it fits the values."""
    at_least: float | None = None
    """Lowest upper end of the axis, so that small changes look small."""
    limit: float | None = None
    """Value of the threshold line; also the staleness bound of strips."""
    limit_label: str = ""
    height: int = 152
    """Height of the plot, in CSS pixels."""
    reason: str = ""
    """Why values can be missing; empty if they never are."""
    reason_of: str = ""
    """Series that the reason is about; empty for all."""
    description: str = ""
    """Tooltip that describes the chart."""

    @property
    def options(self) -> dict[str, Any]:
        """Definition for `static/js/plot.js`."""
        lines = [
            {
                "value": line.value,
                "label": line.label,
                "draw": line.draw,
                "format": line.format or self.format,
                "table": line.table or self.table,
                "isTotal": line.is_total,
            }
            for line in self.series
        ]
        return {
            "name": self.name,
            "form": self.form,
            "lines": lines,
            "table": self.table,
            "format": self.format,
            "bands": [[upper, lower] for upper, lower, *_ in self.bands],
            "fromZero": self.from_zero,
            "atLeast": self.at_least,
            "limit": self.limit,
            "height": self.height,
            "reason": self.reason,
            "reasonOf": self.reason_of,
        }


EACH_STEP_NOTE = "Mean reward of all rollouts that arrived during the step, before filters drop any: shows learning"
MEAN_NOTE = "The same, averaged over the last ten steps"

CHARTS = {
    panel.name: panel
    for panel in (
        Panel(
            name="reward",
            label="Mean reward of rollouts, before filters",
            series=(
                Series(value="reward", label="each step", style="faint", note=EACH_STEP_NOTE),
                Series(value="reward_average", label="10-step mean", note=MEAN_NOTE),
            ),
            format="reward",
        ),
        Panel(
            name="rates",
            label="Groups per second",
            series=(
                Series(value="produced", label="produced", style="main area"),
                Series(value="consumed", label="consumed", style="second"),
            ),
            format="rate",
            from_zero=True,
            at_least=1.0,
        ),
        Panel(
            name="wait",
            label="Share of a step the trainer waits",
            series=(Series(value="wait", label="waiting", style="main area"),),
            format="percent",
            from_zero=True,
            at_least=0.2,
            limit_label="fed",
            reason="No step yet",
        ),
        Panel(
            name="buffer",
            label="Groups in the buffer",
            series=(Series(value="buffered", label="buffered", style="main area"),),
            format="count",
            from_zero=True,
            at_least=4.0,
            limit_label="one batch",
        ),
    )
}
"""Charts of one policy."""

FLEET_CHARTS = {
    panel.name: panel
    for panel in (
        Panel(
            name="ratio",
            label="Capacity of ready nodes over the demand",
            series=(Series(value="ratio", label="capacity / demand", style="main area"),),
            format="ratio",
            from_zero=True,
            at_least=1.5,
            limit_label="demand covered",
        ),
        Panel(
            name="nodes",
            label="Nodes of all pools",
            series=(
                Series(value="nodes", label="ready", style="main area"),
                Series(value="target", label="target", style="second", draw="step"),
            ),
            format="count",
            from_zero=True,
            at_least=2.0,
        ),
        Panel(
            name="price",
            label="Dollars for a thousand accepted trajectories",
            series=(Series(value="price", label="price", style="main area"),),
            format="dollars",
            from_zero=True,
            at_least=0.0001,
        ),
        Panel(
            name="balance",
            label="Groups per second: demand of trainers and capacity of nodes",
            series=(
                Series(value="ready", label="ready", style="ready", note="What ready nodes can produce"),
                Series(value="ordered", label="with pending nodes", style="pending"),
                Series(value="low", label="band from", style="edge"),
                Series(value="high", label="band to", style="edge"),
                Series(value="aimed", label="target", style="aimed", draw="step"),
                Series(value="demand", label="demand", style="demand", note="What keeps every trainer busy"),
            ),
            bands=(
                ("high", "low", "band", "band: below it scale up, inside hold, above scale down"),
                ("ordered", "ready", "pending", ""),
            ),
            format="rate",
            from_zero=True,
            at_least=1.0,
            height=264,
            reason="Demand is measured from the third step on, while all nodes serve all policies",
            reason_of="demand",
        ),
    )
}
"""Charts of the whole fleet, independent of the policy."""

ALL_CHARTS = {**CHARTS, **FLEET_CHARTS}
"""All charts over time that have a page, a table and files."""

VERSION_LAG = "versions"
"""Name of the chart of nodes and the versions they serve."""


def limit_of(panel: Panel, stream: StreamReport, *, fed_below: float) -> float | None:
    """Returns the value of the chart's threshold line for this stream; None for a chart without one."""
    return {"wait": fed_below, "buffer": float(stream.batch_groups), "ratio": 1.0}.get(panel.name)


Row = tuple[float, Mapping[str, float | None]]
"""Time in Unix seconds, and values by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelView:
    """Panel for the template: what it shows without scripts."""

    panel: Panel
    latest: tuple[str, ...]
    """Newest value of each series, as text."""
    sparkline: str
    """Points of a polyline of the main series, in a box of 1000 by 100 units."""


def panel_view(panel: Panel, *rows: Sequence[Row]) -> PanelView:
    """Returns a panel with its newest values. rows: oldest first; with several tables, one for each series."""
    columns = [
        [values.get(series.value) for _, values in rows[index if len(rows) > 1 else 0]]
        for index, series in enumerate(panel.series)
    ]
    texts = [
        value_text(
            next((value for value in reversed(column) if value is not None), None), series.format or panel.format
        )
        for series, column in zip(panel.series, columns, strict=True)
    ]
    main = next((index for index, series in enumerate(panel.series) if series.style.startswith("main")), 0)
    return PanelView(panel=panel, latest=tuple(texts), sparkline=sparkline(columns[main]) if columns else "")


def sparkline(values: Sequence[float | None]) -> str:
    """Returns the points of a polyline in a box of 1000 by 100 units, for pages without scripts. Of many values, it has
    the lowest and the highest of each stretch.

    >>> sparkline([0.0, None, 4.0])
    '0,100 1000,0'
    """
    width = max(1, -(-2 * len(values) // SPARKLINE_POINTS))
    stretches = [values[start : start + width] for start in range(0, len(values), width)]
    shown = values if width <= 2 else [value for stretch in stretches for value in _extremes(stretch)]
    known = [value for value in shown if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    scale_x, scale_y = 1000 / max(1, len(shown) - 1), 100 / ((high - low) or 1.0)
    return " ".join(
        f"{index * scale_x:.0f},{100 - (value - low) * scale_y:.0f}"
        for index, value in enumerate(shown)
        if value is not None
    )


def _extremes(values: Sequence[float | None]) -> list[float | None]:
    """Returns the lowest and the highest value in their order; twice None without values."""
    known = [(value, index) for index, value in enumerate(values) if value is not None]
    ends = sorted((min(known), max(known)), key=lambda entry: entry[1]) if known else []
    return [value for value, _ in ends] or [None, None]


def value_text(value: float | None, kind: str) -> str:
    """Returns a value as a legend shows it. kind: one of `_TEXTS`, or the noun of the unit."""
    return _TEXTS[kind](value) if kind in _TEXTS else formats.with_unit(value, kind)


def metric_format(metric: TrainingMetric) -> str:
    """Returns the format of a training metric's values, for `value_text`."""
    return {MetricUnit.NUMBER: "figure", MetricUnit.SECONDS: "seconds"}.get(metric.unit, metric.unit.value)


_TEXTS: Mapping[str, Callable[[float | None], str]] = {
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
