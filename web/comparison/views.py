"""Comparison of runs: one chart for each figure, with a line for each run."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Literal

from astraflow.contract.training_metrics import TrainingMetric
from web.charts.panels import Panel, PanelView, Series, metric_format, panel_view, value_text
from web.charts.tables import TABLE_ROWS, Table, columns_json, kind_labels, steps_json
from web.comparison.queries import ComparedRun, differences
from web.components import formats
from web.components.downloads import Sheet
from web.history.series_queries import Row
from web.history.training_steps import STEP, recorded_metrics
from web.runs import training
from web.runs.views import RUN_CHARTS

ComparisonAxis = Literal["step", "time"]
STYLES = tuple(f"run-{number}" for number in ("one", "two", "three", "four", "five", "six", "seven", "eight"))
"""CSS classes of the runs' lines; each class has its own dash pattern."""


SPECS = {panel.name: panel for panel in RUN_CHARTS.values() if len(panel.series) == 1 or panel.name == "reward"}
"""Charts that compare runs, with one line for each run."""

COMPARED_KINDS = {"step": "step", "elapsed": "elapsed", "tokens": "total_tokens", "episodes": "total_episodes"}
"""Column behind each kind of x axis; the time is that since the start of the run."""


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
    charts: tuple[tuple[PanelView, str], ...]
    """Charts with their titles."""
    tables: dict[str, Any]
    """Tables of the charts, by id."""
    x_kinds: list[tuple[str, str]]
    """Kinds of x axis, with labels."""
    sections: tuple[training.MetricSection, ...]
    """Training metrics as small multiples; empty for a single chart."""
    differing_settings: tuple[tuple[str, tuple[str, ...]], ...]
    without_settings: tuple[str, ...]
    """Names of runs whose recipe is unknown."""
    policies: tuple[str, ...]


def comparison(many: Sequence[ComparedRun], *, policies: Sequence[str], only: str = "") -> Comparison:
    """Builds the page. only: name of a single chart to show; empty for all."""
    metrics = [metric for metric in compared_metrics(many) if only in ("", metric.name)]
    small = [training.metric_chart(metric, *_training(many), lines=_lines(many, "steps")) for metric in metrics]
    panels = [_run_panel(panel, many) for panel in SPECS.values() if only in ("", panel.name)]
    charts = [(panel_view(panel, *(run.rows for run in many)), _spec_insight(panel, many)) for panel in panels]
    if only and not charts:
        charts = [(training.large(chart), _metric_insight(chart.metric, many)) for chart in small]
    measured = [(view, insight) for view, insight in charts if set(view.latest) != {formats.MISSING}]
    tables = {f"{kind}-{run.record.id}": table for run in many for kind, table in _tables(run).items()}
    return Comparison(
        columns=tuple(_column(run, STYLES[index]) for index, run in enumerate(many)),
        charts=tuple(measured),
        tables=tables,
        x_kinds=kind_labels(*tables.values()),
        sections=() if only else training.sections(small),
        differing_settings=tuple(
            (key, tuple(formats.MISSING if value is None else value for value in values))
            for key, values in differences(many)
        ),
        without_settings=tuple(run.record.name for run in many if run.settings is None),
        policies=tuple(policies),
    )


def _tables(run: ComparedRun) -> dict[str, Any]:
    """Returns the tables of a run, by kind: its points over time, and its training steps."""
    begin = run.record.started_at
    points = [(at, {**values, "elapsed": at - begin}) for at, values in run.rows]
    steps = [(at, {**values, "elapsed": at - begin}) for at, values in run.training]
    names = {_line_of(panel).value for panel in SPECS.values()}
    return {
        "points": columns_json(points, names, kinds={"step": "steps", "elapsed": "elapsed"}),
        "steps": steps_json(steps, kinds=COMPARED_KINDS),
    }


def _lines(many: Sequence[ComparedRun], table: str) -> list[Series]:
    """Returns the line of each run, without its value. table: kind of the tables."""
    return [
        Series(value="", label=run.record.name, style=STYLES[index], table=f"{table}-{run.record.id}")
        for index, run in enumerate(many)
    ]


def _run_panel(panel: Panel, many: Sequence[ComparedRun]) -> Panel:
    line = _line_of(panel)
    return replace(
        panel,
        label=f"{panel.label}, {line.label}" if len(panel.series) > 1 else panel.label,
        series=tuple(replace(run_line, value=line.value) for run_line in _lines(many, "points")),
        limit=None,
    )


def _training(many: Sequence[ComparedRun]) -> list[Sequence[Row]]:
    return [run.training for run in many]


def sheet(many: Sequence[ComparedRun], *, by: ComparisonAxis) -> Sheet:
    """Returns all charts as a sheet: a row for each run and time."""
    names = [_line_of(panel).value for panel in RUN_CHARTS.values()]
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
    return recorded_metrics(*(run.training for run in many))


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
            *(value_text(_value_at(points, at), kind) for points in series),
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
    return name, metric_format(metric), [_metric_points(metric, run, by) for run in many]


def _metric_points(metric: TrainingMetric, run: ComparedRun, by: ComparisonAxis) -> list[tuple[float, float]]:
    return [
        (_metric_place(run, at, values, by), value)
        for at, values in run.training
        if (value := values.get(metric.name)) is not None
    ]


def _metric_place(run: ComparedRun, at: float, values: Mapping[str, float | None], by: ComparisonAxis) -> float:
    return (values[STEP] or 0.0) if by == "step" else at - run.record.started_at


def _metric_insight(metric: TrainingMetric, many: Sequence[ComparedRun]) -> str:
    points = [(_metric_points(metric, run, "step"), run.record.name) for run in many]
    return _insight([(own[-1][1], name) for own, name in points if own], metric_format(metric))


def _value_at(points: Sequence[tuple[float, float]], at: float) -> float | None:
    count = bisect_right(points, at, key=itemgetter(0))
    return points[count - 1][1] if count and at <= points[-1][0] else None


def _series(run: ComparedRun, line: Series, by: ComparisonAxis) -> list[tuple[float, float | None]]:
    axis_value = _axis_value_of(by)
    return [(at, row.get(line.value)) for x, row in run.rows if (at := axis_value(run, x, row)) is not None]


def _axis_value_of(by: ComparisonAxis) -> Callable[[ComparedRun, float, dict[str, float | None]], float | None]:
    if by == "step":
        return lambda run, at, numbers: numbers.get("steps")
    return lambda run, at, numbers: at - run.record.started_at


def _line_of(panel: Panel) -> Series:
    """Returns the line to compare: the main line if the chart has one."""
    return next((line for line in panel.series if line.style == "main"), panel.series[0])


def _spec_insight(panel: Panel, many: Sequence[ComparedRun]) -> str:
    name = panel.series[0].value
    ends = [
        (last, run.record.name)
        for run in many
        if (last := next((value for _, row in reversed(run.rows) if (value := row.get(name)) is not None), None))
        is not None
    ]
    return _insight(ends, panel.format)


def _insight(ends: Sequence[tuple[float, str]], kind: str) -> str:
    """Returns which run has the highest last value. ends: last value and name of each run."""
    if not ends:
        return "Nothing measured yet"
    ends = sorted(ends, reverse=True)
    texts = [value_text(value, kind) for value, _ in ends]
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
