"""Comparison of runs: one chart for each figure, with a line for each run."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Literal

from astraflow.contract.training_metrics import TrainingMetric
from web.charts import charts, scales
from web.charts.chart_data import TABLE_ROWS, Table
from web.comparison.queries import ComparedRun, differences
from web.components import formats
from web.components.downloads import Sheet
from web.history.points import rounded
from web.history.training_steps import STEP
from web.runs import training
from web.runs.views import RUN_CHARTS

ComparisonAxis = Literal["step", "time"]
STYLES = ("one", "two", "three", "four", "five", "six", "seven", "eight")
"""CSS classes of the runs' lines; each class has its own dash pattern."""


SPECS = {spec.name: spec for spec in RUN_CHARTS.values() if len(spec.lines) == 1 or spec.name == "reward"}
"""Charts that compare runs, with one line for each run."""

POINTER_POINTS = 200
"""Maximum number of points of a line that the cursor can show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedColumn:
    """Column of a run."""

    id: int
    name: str
    style: str
    figures: tuple[tuple[str, str], ...]
    has_settings: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """View model of the page."""

    columns: tuple[ComparedColumn, ...]
    drawings: tuple[charts.Drawing, ...]
    insights: tuple[str, ...]
    """Titles of the drawings."""
    sections: tuple[training.MetricSection, ...]
    """Training metrics as small multiples; empty for a single chart."""
    differing_settings: tuple[tuple[str, tuple[str, ...]], ...]
    without_settings: tuple[str, ...]
    """Names of runs whose recipe is unknown."""
    by: ComparisonAxis
    policies: tuple[str, ...]


def comparison(
    many: Sequence[ComparedRun], *, by: ComparisonAxis, policies: Sequence[str], only: str = ""
) -> Comparison:
    """Builds the page. only: name of a single chart to show; empty for all."""
    specs = [spec for spec in SPECS.values() if only in ("", spec.name)]
    candidates = [(_drawing(spec, many, by), _spec_insight(spec, many)) for spec in specs]
    metrics = compared_metrics(many)
    if not specs:
        candidates += [_large_metric(metric, many, by) for metric in metrics if metric.name == only]
    small = [(metric, training.small_chart(metric, _metric_lines(metric, many, by), by=by)) for metric in metrics]
    shown = [(drawing, insight) for drawing, insight in candidates if any(line.path for line in drawing.lines)]
    return Comparison(
        columns=tuple(_column(run, STYLES[index]) for index, run in enumerate(many)),
        drawings=tuple(drawing for drawing, _ in shown),
        insights=tuple(insight for _, insight in shown),
        sections=() if only else training.sections(small),
        differing_settings=tuple(
            (key, tuple(formats.MISSING if value is None else value for value in values))
            for key, values in differences(many)
        ),
        without_settings=tuple(run.record.name for run in many if run.settings is None),
        by=by,
        policies=tuple(policies),
    )


def sheet(many: Sequence[ComparedRun], *, by: ComparisonAxis) -> Sheet:
    """Returns all charts as a sheet: a row for each run and time."""
    names = [line.value for spec in RUN_CHARTS.values() for line in [_line_of(spec)]]
    axis_value = _axis_value_of(by)
    rows = [
        [
            run.record.id,
            run.record.name,
            run.policy,
            axis_value(run, at, numbers),
            *(numbers.get(name) for name in names),
        ]
        for run in many
        for at, numbers in run.rows
    ]
    return Sheet(name="comparison", columns=("id", "run", "policy", by, *names), rows=rows)


def compared_metrics(many: Sequence[ComparedRun]) -> list[TrainingMetric]:
    """Returns the training metrics that any of the runs has."""
    return training.recorded(*(run.training for run in many))


def chart_label(many: Sequence[ComparedRun], name: str) -> str | None:
    """Returns the label of a chart; None if there is none of this name: `SPECS`, and the metrics of the runs."""
    if name in SPECS:
        return SPECS[name].label
    return next((metric.label for metric in compared_metrics(many) if metric.name == name), None)


def training_sheet(many: Sequence[ComparedRun], *, by: ComparisonAxis) -> Sheet:
    """Returns all training metrics: a row for each run and step."""
    names = [metric.name for metric in compared_metrics(many)]
    rows = [
        (run.record.id, run.record.name, run.policy, _metric_place(run, at, values, by), *map(values.get, names))
        for run in many
        for at, values in run.training
    ]
    return Sheet(name="comparison-training", columns=("id", "run", "policy", by, *names), rows=rows)


def chart_sheet(many: Sequence[ComparedRun], name: str, *, by: ComparisonAxis) -> Sheet:
    """Returns the data of one chart: a row for each run and position. name: as for `chart_label`."""
    value_name, _, series = _chart_series(many, name, by)
    rows = [
        (run.record.id, run.record.name, run.policy, at, value)
        for run, points in zip(many, series, strict=True)
        for at, value in points
    ]
    return Sheet(name=f"comparison-{name}", columns=("id", "run", "policy", by, value_name), rows=rows)


def chart_table(many: Sequence[ComparedRun], name: str, *, by: ComparisonAxis) -> Table:
    """Returns about sixty rows, last position first, with each run's latest value up to that position."""
    _, kind, series = _chart_series(many, name, by)
    positions = sorted({at for points in series for at, _ in points}, reverse=True)
    shown = positions[:: max(1, -(-len(positions) // TABLE_ROWS))]
    body = [
        (
            formats.count(at) if by == "step" else formats.duration(at),
            *(scales.value_text(_value_at(points, at), kind) for points in series),
        )
        for at in shown
    ]
    return ("step" if by == "step" else "elapsed", *(run.record.name for run in many)), body


def _chart_series(
    many: Sequence[ComparedRun], name: str, by: ComparisonAxis
) -> tuple[str, str, list[Sequence[tuple[float, float]]]]:
    """Returns the name and the format of a chart's value, and the known values of each run."""
    if name in SPECS:
        line = _line_of(SPECS[name])
        known_points = [[(at, value) for at, value in _series(run, line, by) if value is not None] for run in many]
        return line.value, SPECS[name].format, [*known_points]
    metric = next(metric for metric in compared_metrics(many) if metric.name == name)
    return name, training.format_of(metric), [line.points for line in _metric_lines(metric, many, by)]


def _metric_lines(metric: TrainingMetric, many: Sequence[ComparedRun], by: ComparisonAxis) -> list[training.MetricLine]:
    return [
        training.MetricLine(
            label=run.record.name,
            style=STYLES[number],
            points=[
                (_metric_place(run, at, values, by), value)
                for at, values in run.training
                if (value := values.get(metric.name)) is not None
            ],
        )
        for number, run in enumerate(many)
    ]


def _metric_place(run: ComparedRun, at: float, values: Mapping[str, float | None], by: ComparisonAxis) -> float:
    return (values[STEP] or 0.0) if by == "step" else at - run.record.started_at


def _large_metric(
    metric: TrainingMetric, many: Sequence[ComparedRun], by: ComparisonAxis
) -> tuple[charts.Drawing, str]:
    lines = _metric_lines(metric, many, by)
    ends = [(line.points[-1][1], line.label) for line in lines if line.points]
    return training.large_chart(metric, lines, by=by).drawing, _insight(ends, training.format_of(metric))


def _value_at(points: Sequence[tuple[float, float]], at: float) -> float | None:
    count = bisect_right(points, at, key=itemgetter(0))
    return points[count - 1][1] if count and at <= points[-1][0] else None


def _series(run: ComparedRun, line: charts.Line, by: ComparisonAxis) -> list[tuple[float, float | None]]:
    axis_value = _axis_value_of(by)
    return [(at, row.get(line.value)) for x, row in run.rows if (at := axis_value(run, x, row)) is not None]


def _axis_value_of(by: ComparisonAxis) -> Callable[[ComparedRun, float, dict[str, float | None]], float | None]:
    if by == "step":
        return lambda run, at, numbers: numbers.get("steps")
    return lambda run, at, numbers: at - run.record.started_at


def _line_of(spec: charts.ChartSpec) -> charts.Line:
    """Returns the line to compare: the main line if the chart has one."""
    return next((line for line in spec.lines if line.style == "main"), spec.lines[0])


def _drawing(spec: charts.ChartSpec, many: Sequence[ComparedRun], by: ComparisonAxis) -> charts.Drawing:
    line = _line_of(spec)
    series = [_series(run, line, by) for run in many]
    ends = [at for points in series for at, _ in points]
    window = scales.window_of(0.0, max(ends, default=0.0), None)
    if by == "step":
        window = replace(window, end=max(1.0, max(ends, default=0.0)))
    values = [value for points in series for _, value in points if value is not None]
    axis = scales.y_axis(values, at_least=spec.at_least)
    return charts.Drawing(
        spec=replace(spec, label=f"{spec.label}, {line.label}" if len(spec.lines) > 1 else spec.label),
        lines=tuple(
            charts.DrawnLine(
                label=run.record.name,
                style=STYLES[number],
                path=scales.path(
                    [
                        (window.x_of(at), None if value is None else axis.y_of(value, spec.height))
                        for at, value in points
                    ]
                ),
                area="",
                end="",
                latest=scales.value_text(next((v for _, v in reversed(points) if v is not None), None), spec.format),
            )
            for number, (run, points) in enumerate(zip(many, series, strict=True))
        ),
        y_ticks=tuple((axis.y_of(tick, spec.height), scales.tick_text(tick, spec.format)) for tick in axis.ticks),
        x_ticks=tuple(scales.step_ticks(window) if by == "step" else scales.x_ticks(window)),
        limit_y=None,
        limit=None,
        window=window,
        options={
            "start": window.start,
            "end": window.end,
            "by": by,
            "format": spec.format,
            "height": spec.height,
            "lines": [_pointer_points(points) for points in series],
        },
    )


def _pointer_points(points: Sequence[tuple[float, float | None]]) -> list[list[float | None]]:
    known_points = [(at, value) for at, value in points if value is not None]
    shown = known_points[::-1][:: max(1, -(-len(known_points) // POINTER_POINTS))][::-1]
    return [[round(at, 1), rounded(value)] for at, value in shown]


def _spec_insight(spec: charts.ChartSpec, many: Sequence[ComparedRun]) -> str:
    name = _line_of(spec).value
    ends = [
        (last, run.record.name)
        for run in many
        if (last := next((value for _, row in reversed(run.rows) if (value := row.get(name)) is not None), None))
        is not None
    ]
    return _insight(ends, spec.format)


def _insight(ends: Sequence[tuple[float, str]], kind: str) -> str:
    """Returns which run has the highest last value. ends: last value and name of each run."""
    if not ends:
        return "Nothing measured yet"
    ends = sorted(ends, reverse=True)
    texts = [scales.value_text(value, kind) for value, _ in ends]
    if len(ends) == 1:
        return f"{ends[0][1]} ends at {texts[0]}"
    if texts[0] == texts[-1]:
        return f"All end at {texts[0]}"
    return f"{ends[0][1]} ends highest, at {texts[0]} against {', '.join(texts[1:])}"


def _column(run: ComparedRun, style: str) -> ComparedColumn:
    last = {name: value for _, numbers in run.rows for name, value in numbers.items() if value is not None}
    return ComparedColumn(
        id=run.record.id or 0,
        name=run.record.name,
        style=style,
        figures=(
            ("Recipe", run.record.recipe or formats.MISSING),
            ("Policy", run.policy or formats.MISSING),
            ("Step", formats.count(last.get("steps"))),
            ("Reward", formats.reward(last.get("reward_average"))),
            ("Wait", formats.percent(last.get("wait"))),
            ("Duration", formats.duration(run.record.last_at - run.record.started_at)),
        ),
        has_settings=run.settings is not None,
    )
