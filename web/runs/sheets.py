"""Data of the charts of a run, for tables and downloads."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from astraflow.contract.training_metrics import TRAINING_METRICS, TrainingMetric
from web.charts import panels
from web.charts.tables import TABLE_ROWS, Table, as_sheet, as_table
from web.charts.version_lag import LAG_COLUMNS
from web.components import formats
from web.components.downloads import Sheet
from web.history.training_steps import recorded_metrics
from web.runs.timeline import PARTS
from web.runs.training import TRAINING, metric_sheet, metric_table
from web.runs.views import RUN_CHARTS, RunHistory, RunView

TIMELINE = "timeline"
LABELS = {
    **{name: panel.label for name, panel in RUN_CHARTS.items()},
    TIMELINE: "Trainer time by activity",
    panels.VERSION_LAG: "Versions behind the trainer, for the nodes that lag most",
    **{metric.name: metric.label for metric in TRAINING_METRICS},
}
"""Label of each chart of a run, by name; a trainer may report metrics that are not described here."""


def recorded_metric(past: RunHistory, name: str) -> TrainingMetric | None:
    """Returns the training metric of this name; None if the run has no value of it."""
    return next((metric for metric in recorded_metrics(past.training) if metric.name == name), None)


def has_chart(past: RunHistory, name: str) -> bool:
    """Returns whether the run has a chart of this name."""
    return name in LABELS or recorded_metric(past, name) is not None


def run_sheet(view: RunView, past: RunHistory, name: str) -> Sheet:
    """Returns the data of a chart as a sheet. name: for which `has_chart` is true, or `TRAINING` for all metrics."""
    file = f"astraflow-{view.row.name}-{view.policy}-{name}".replace("/", "_").replace('"', "_")
    if name == TIMELINE:
        columns = ("from", "to", *(f"{part}_s" for part in PARTS))
        rows = [
            (_iso(begin), _iso(end), *(seconds[part] for part in PARTS))
            for begin, end, seconds in view.timeline.intervals
        ]
        return Sheet(name=file, columns=columns, rows=rows)
    if name == panels.VERSION_LAG:
        return Sheet(name=file, columns=LAG_COLUMNS, rows=_lag_rows(past))
    if name not in RUN_CHARTS:
        metrics = [metric for metric in recorded_metrics(past.training) if name in (metric.name, TRAINING)]
        return metric_sheet(file, past.training, metrics)
    return as_sheet(file, _within(past, past.rows), [series.value for series in RUN_CHARTS[name].series])


def run_table(view: RunView, past: RunHistory, name: str) -> Table:
    """Returns the data of a chart as a table of about sixty rows, newest first."""
    if name == TIMELINE:
        return _timeline_table(view)
    if name == panels.VERSION_LAG:
        return _lag_table(past)
    if name not in RUN_CHARTS:
        return metric_table(
            past.training, [metric for metric in recorded_metrics(past.training) if metric.name == name]
        )
    return as_table(RUN_CHARTS[name], _within(past, past.rows))


def _within(past: RunHistory, rows: Sequence[panels.Row]) -> list[panels.Row]:
    """Returns the rows up to the end of the requested range."""
    end = past.span.end if past.span is not None and past.span.end is not None else math.inf
    return [(at, numbers) for at, numbers in rows if at <= end]


def _lag_rows(past: RunHistory) -> list[tuple[str, float, str, float]]:
    lag_rows = [
        (at, name, lag)
        for name, rows in past.lags.items()
        for at, numbers in _within(past, rows)
        if (lag := numbers["lag"]) is not None
    ]
    return [(_iso(at), round(at, 3), name, lag) for at, name, lag in sorted(lag_rows)]


def _lag_table(past: RunHistory) -> Table:
    by_time: dict[float, Mapping[str, float | None]] = {}
    for name, rows in past.lags.items():
        for at, numbers in rows:
            by_time[at] = {**by_time.get(at, {}), name: numbers["lag"]}
    times = sorted(by_time, reverse=True)
    shown = times[:: max(1, -(-len(times) // TABLE_ROWS))]
    names = tuple(past.lags)
    body = [
        (formats.duration(times[0] - at), *(formats.count(by_time[at].get(name)) for name in names)) for at in shown
    ]
    return ("age", *(formats.node_name(name) for name in names)), body


def _timeline_table(view: RunView) -> Table:
    intervals = view.timeline.intervals[::-1]
    newest = intervals[0][1] if intervals else 0.0
    body = [
        (
            formats.duration(newest - end),
            formats.duration(end - begin),
            *(formats.percent(seconds[part] / sum(seconds.values())) for part in PARTS),
        )
        for begin, end, seconds in intervals[:: max(1, -(-len(intervals) // TABLE_ROWS))]
    ]
    return ("age", "interval", *PARTS), body


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
