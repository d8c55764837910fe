"""Each chart of a run's page as rows: exactly what is drawn, for its table and its files."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from web.present import charts, formats
from web.present.ladder import LAG_COLUMNS
from web.present.runs import RUN_CHARTS, RunPast, RunView
from web.present.series import TABLE_ROWS, Table, as_sheet, as_table
from web.present.timeline import PARTS
from web.reading.exports import Sheet

TIMELINE = "timeline"
LABELS = {
    **{name: spec.label for name, spec in RUN_CHARTS.items()},
    TIMELINE: "What the trainer did with its time",
    charts.LADDER: "Versions behind the trainer, of the nodes that were farthest behind",
}
"""Of every chart that a run has, by its name."""


def run_sheet(view: RunView, past: RunPast, name: str) -> Sheet:
    """name: one of `LABELS`."""
    file = f"astraflow-{view.row.name}-{view.policy}-{name}".replace("/", "_").replace('"', "_")
    if name == TIMELINE:
        columns = ("from", "to", *(f"{part}_s" for part in PARTS))
        found = [
            (_iso(begin), _iso(end), *(seconds[part] for part in PARTS))
            for begin, end, seconds in view.timeline.stretches
        ]
        return Sheet(name=file, columns=columns, rows=found)
    if name == charts.LADDER:
        return Sheet(name=file, columns=LAG_COLUMNS, rows=_lag_rows(view, past))
    spec = RUN_CHARTS[name]
    return as_sheet(file, _within(view, name, past.rows), [line.value for line in spec.lines])


def run_table(view: RunView, past: RunPast, name: str) -> Table:
    """The same for people: about sixty rows, newest first."""
    if name == TIMELINE:
        return _timeline_table(view)
    if name == charts.LADDER:
        return _lag_table(past)
    return as_table(RUN_CHARTS[name], _within(view, name, past.rows))


def _within(view: RunView, name: str, rows: Sequence[charts.Row]) -> list[charts.Row]:
    window = view.drawings[name].window
    return [(at, numbers) for at, numbers in rows if window.start <= at <= window.end]


def _lag_rows(view: RunView, past: RunPast) -> list[tuple[str, float, str, float]]:
    found = [
        (at, name, lag)
        for name, rows in past.lags.items()
        for at, numbers in _within(view, "reward", rows)
        if (lag := numbers["lag"]) is not None
    ]
    return [(_iso(at), round(at, 3), name, lag) for at, name, lag in sorted(found)]


def _lag_table(past: RunPast) -> Table:
    by_time: dict[float, Mapping[str, float | None]] = {}
    for name, rows in past.lags.items():
        for at, numbers in rows:
            by_time[at] = {**by_time.get(at, {}), name: numbers["lag"]}
    moments = sorted(by_time, reverse=True)
    shown = moments[:: max(1, -(-len(moments) // TABLE_ROWS))]
    names = tuple(past.lags)
    body = [
        (formats.duration(moments[0] - at), *(formats.count(by_time[at].get(name)) for name in names)) for at in shown
    ]
    return ("before the newest", *(formats.node_name(name) for name in names)), body


def _timeline_table(view: RunView) -> Table:
    stretches = view.timeline.stretches[::-1]
    newest = stretches[0][1] if stretches else 0.0
    body = [
        (
            formats.duration(newest - end),
            formats.duration(end - begin),
            *(formats.percent(seconds[part] / sum(seconds.values())) for part in PARTS),
        )
        for begin, end, seconds in stretches[:: max(1, -(-len(stretches) // TABLE_ROWS))]
    ]
    return ("before the newest", "stretch", *PARTS), body


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
