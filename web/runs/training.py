"""Training metrics as small multiples over the step: of one run, or of compared runs with a line for each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astraflow.contract.training_metrics import (
    TRAINING_METRICS,
    MetricGroup,
    MetricUnit,
    TrainingMetric,
    training_metric,
)
from web.charts import charts, scales
from web.charts.chart_data import TABLE_ROWS, Table, as_sheet
from web.components import formats
from web.components.downloads import Sheet
from web.components.insights import change_insight
from web.history.points import rounded
from web.history.training_steps import STEP, X_VALUES
from web.runs.endings import EndingsChart, endings_chart

TRAINING = "training"
"""Name of all training metrics together, among the charts of a run."""

SMALL_POINTS = 150
"""Points of a small multiple: more than it has distinguishable positions."""

SMALL_HEIGHT = 80
LARGE_HEIGHT = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricLine:
    """Line of a metric: its values over the x axis, ascending."""

    label: str
    style: str
    """CSS class: `main`, or the class of a compared run."""
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChart:
    """Chart of one metric, ready for the template."""

    metric: TrainingMetric
    drawing: charts.Drawing
    summary: str
    """Range of the values and of the x axis, for people who do not see the drawing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSection:
    """Small multiples of a group."""

    group: MetricGroup
    charts: tuple[MetricChart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingView:
    """Training metrics of a run over the shown time range."""

    sections: tuple[MetricSection, ...]
    endings: EndingsChart | None
    """Shares of the endings, which have no small multiples; None without any."""
    steps: tuple[int, int] | None
    """First and last shown step; None without any."""
    thinned_from: int | None
    """Number of steps of which some are shown; None if all are."""
    step_times: tuple[tuple[int, float], ...]
    """Steps with their time (Unix seconds): the page's cursor is a time."""


def training_view(rows: Sequence[charts.Row], *, thinned_from: int | None = None) -> TrainingView:
    """Builds the section of a run's page. rows, thinned_from: of `training_rows`."""
    steps = [(int(values[STEP] or 0), round(at, 2)) for at, values in rows]
    metrics = [metric for metric in recorded(rows) if metric.group is not MetricGroup.ENDINGS]
    return TrainingView(
        sections=sections([(metric, small_chart(metric, [run_line(metric, rows)])) for metric in metrics]),
        endings=endings_chart(rows),
        steps=(steps[0][0], steps[-1][0]) if steps else None,
        thinned_from=thinned_from,
        step_times=tuple(steps),
    )


def recorded(*many: Sequence[charts.Row]) -> list[TrainingMetric]:
    """Returns the metrics with a value in any of the rows, in the order in which they are shown."""
    names = {name for rows in many for _, values in rows for name, value in values.items() if value is not None}
    described = [metric for metric in TRAINING_METRICS if metric.name in names]
    others = names.difference((metric.name for metric in TRAINING_METRICS), X_VALUES)
    return [*described, *(metric for name in sorted(others) if (metric := training_metric(name)) is not None)]


def sections(drawn: Sequence[tuple[TrainingMetric, MetricChart]]) -> tuple[MetricSection, ...]:
    """Returns the charts by group, without empty groups."""
    by_group = {group: tuple(chart for metric, chart in drawn if metric.group is group) for group in MetricGroup}
    return tuple(MetricSection(group=group, charts=members) for group, members in by_group.items() if members)


def run_line(metric: TrainingMetric, rows: Sequence[charts.Row]) -> MetricLine:
    """Returns the line of one run over its steps."""
    points = [
        (step, value)
        for _, values in rows
        if (step := values.get(STEP)) is not None and (value := values.get(metric.name)) is not None
    ]
    return MetricLine(label=metric.label, style="main", points=points)


def small_chart(metric: TrainingMetric, lines: Sequence[MetricLine], *, by: str = "step") -> MetricChart:
    """Draws a small multiple, whose y axis reaches from the lowest to the highest value."""
    values = [value for line in lines for _, value in line.points]
    axis = scales.fitted_axis(values)
    kind = format_of(metric)
    y_ticks = tuple((axis.y_of(tick, SMALL_HEIGHT), scales.end_text(tick, kind)) for tick in axis.ticks)
    window = _window(lines, by)
    first, last = (formats.count(x) if by == "step" else formats.duration(x) for x in (window.start, window.end))
    x_ticks = ((0.0, f"step {first}" if by == "step" else "start"), (100.0, last))
    return _chart(metric, lines, axis, window, y_ticks, x_ticks, height=SMALL_HEIGHT, by=by)


def large_chart(metric: TrainingMetric, lines: Sequence[MetricLine], *, by: str = "step") -> MetricChart:
    """Draws the chart in full width, with round ticks."""
    axis = scales.round_axis([value for line in lines for _, value in line.points])
    kind = format_of(metric)
    y_ticks = tuple((axis.y_of(tick, LARGE_HEIGHT), scales.tick_text(tick, kind)) for tick in axis.ticks)
    window = _window(lines, by)
    x_ticks = tuple(scales.step_ticks(window) if by == "step" else scales.x_ticks(window))
    return _chart(metric, lines, axis, window, y_ticks, x_ticks, height=LARGE_HEIGHT, by=by)


def metric_insight(metric: TrainingMetric, line: MetricLine) -> str:
    """Returns the title of a run's chart: the change over the shown steps."""
    kind, values = format_of(metric), [value for _, value in line.points]
    return change_insight(metric.label, values, lambda value: scales.value_text(value, kind))


def metric_sheet(name: str, rows: Sequence[charts.Row], metrics: Sequence[TrainingMetric]) -> Sheet:
    """Returns the metrics as a sheet, one row for each step. name: of the file."""
    return as_sheet(name, rows, (*X_VALUES, *(metric.name for metric in metrics)))


def metric_table(rows: Sequence[charts.Row], metrics: Sequence[TrainingMetric]) -> Table:
    """Returns about sixty evenly spaced steps, newest first."""
    newest = rows[-1][0] if rows else 0.0
    body = [
        (
            formats.count(values[STEP]),
            formats.duration(newest - at),
            *(scales.value_text(values.get(metric.name), format_of(metric)) for metric in metrics),
        )
        for at, values in rows[::-1][:: max(1, -(-len(rows) // TABLE_ROWS))]
    ]
    return ("step", "age", *(metric.label for metric in metrics)), body


def format_of(metric: TrainingMetric) -> str:
    """Returns the format of the metric's values, for `scales.value_text`."""
    return {MetricUnit.NUMBER: "figure", MetricUnit.SECONDS: "seconds"}.get(metric.unit, metric.unit.value)


def axis_label(metric: TrainingMetric, *, by: str = "step") -> str:
    """Returns what a chart shows: the metric with its unit, and the x axis."""
    unit = {MetricUnit.NUMBER: "", MetricUnit.SHARE: ", per cent"}.get(metric.unit, f", {metric.unit.value}")
    return f"{metric.label}{unit}, by {by}"


def _chart(
    metric: TrainingMetric,
    lines: Sequence[MetricLine],
    axis: scales.Axis,
    window: scales.Window,
    y_ticks: tuple[tuple[float, str], ...],
    x_ticks: tuple[tuple[float, str], ...],
    *,
    height: int,
    by: str,
) -> MetricChart:
    kind = format_of(metric)
    spec = charts.ChartSpec(
        name=metric.name,
        label=axis_label(metric, by=by),
        lines=(charts.Line(value=metric.name, label=metric.label, style="main"),),
        format=kind,
        at_least=0.0,
        height=height,
    )
    return MetricChart(
        metric=metric,
        drawing=charts.Drawing(
            spec=spec,
            lines=tuple(_drawn(line, kind, window, axis, height) for line in lines),
            y_ticks=y_ticks,
            x_ticks=x_ticks,
            limit_y=None,
            limit=None,
            window=window,
            options=_options(lines, kind, window, by),
        ),
        summary=_summary(kind, lines, by),
    )


def _window(lines: Sequence[MetricLine], by: str) -> scales.Window:
    ends = [end[0] for line in lines if line.points for end in (line.points[0], line.points[-1])]
    if by == "time":
        return scales.window_of(0.0, max(ends, default=0.0), None)
    first, last = min(ends, default=0.0), max(ends, default=1.0)
    return scales.Window(start=first, end=max(last, first + 1), range_s=None)


def _drawn(line: MetricLine, kind: str, window: scales.Window, axis: scales.Axis, height: int) -> charts.DrawnLine:
    places = [(window.x_of(x), axis.y_of(value, height)) for x, value in line.points]
    return charts.DrawnLine(
        label=line.label,
        style=line.style,
        path=scales.path(places),
        area="",
        end=scales.dot(*places[-1]) if places else "",
        latest=scales.value_text(line.points[-1][1] if line.points else None, kind),
    )


def _options(lines: Sequence[MetricLine], kind: str, window: scales.Window, by: str) -> Mapping[str, Any]:
    return {
        "start": window.start,
        "end": window.end,
        "by": by,
        "format": kind,
        "lines": [[[round(x, 1), rounded(value)] for x, value in line.points] for line in lines],
    }


def _summary(kind: str, lines: Sequence[MetricLine], by: str) -> str:
    texts = []
    for line in lines:
        if not line.points:
            continue
        values = [value for _, value in line.points]
        low, high = (scales.value_text(value, kind) for value in (min(values), max(values)))
        first, last = (
            formats.count(x) if by == "step" else formats.duration(x) for x in (line.points[0][0], line.points[-1][0])
        )
        between = f"between {low} and {high}" if low != high else f"constantly {low}"
        texts.append(f"{line.label}: {between}, {'steps' if by == 'step' else 'from'} {first} to {last}.")
    return " ".join(texts)
