"""Tables behind the charts of a page: run-length encoded columns of numbers, their files, and their values as text.

Most numbers stay the same for seconds or minutes, so columns are far smaller than the same numbers point by point.
`static/js/tables.js` reads them.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import Any

from astraflow.contract.ids import PolicyId
from web.charts.panels import Panel, Row, value_text
from web.components import formats
from web.components.downloads import Sheet
from web.history.capacity import FLEET_VALUES
from web.history.points import VALUES, Point, rounded
from web.history.time_ranges import TimeRange
from web.state.annotations import Annotation, annotation_json

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Headings and rows, as text."""

TABLE_ROWS = 60
CENTISECONDS = 100
POINT_VALUES = ("steps", "version")
"""Columns of points that scripts read besides the series of their charts."""

POINT_KINDS = {"time": "at", "step": "steps"}
"""Column behind each kind of x axis, of a table of points."""

STEP_KINDS = {"step": "step", "time": "at", "tokens": "total_tokens", "episodes": "total_episodes"}
"""Column behind each kind of x axis, of a table of training steps."""

KIND_LABELS = {"time": "time", "elapsed": "time", "step": "step", "tokens": "tokens", "episodes": "episodes"}
"""Label of each kind of x axis."""


def columns_json(
    rows: Sequence[Row], columns: Iterable[str], *, kinds: Mapping[str, str], span: TimeRange | None = None, **more: Any
) -> dict[str, Any]:
    """Returns a table for scripts. rows: oldest first. kinds: column behind each kind of x axis; `at` is the time.

    Times are sent as differences, in hundredths of a second. span: requested time range; None for all of it.
    """
    names = sorted({*columns, *kinds.values()} - {"at"})
    times = [round(at * CENTISECONDS) for at, _ in rows]
    return {
        "kinds": list(kinds.items()),  # in this order, unlike the keys of an object
        "at": run_length_encoded(_differences(times)),
        "columns": {name: run_length_encoded([rounded(values.get(name)) for _, values in rows]) for name in names},
        "range": None if span is None else span.duration_s,
        "end": None if span is None else span.end,
        **more,
    }


def points_json(
    policy: str,
    rows: Sequence[Row],
    panels: Iterable[Panel],
    *,
    sequences: Sequence[int],
    span: TimeRange | None = None,
    lags: Mapping[str, Sequence[int | None]] | None = None,
    annotations: Sequence[Annotation] = (),
    is_moving: bool = True,
    kinds: Mapping[str, str] = POINT_KINDS,
) -> dict[str, Any]:
    """Returns the points of one policy, reduced to the values of these panels, which live frames continue.

    sequences: sequence of the report behind each row. lags: versions behind, by node, one for each row; None while the
    node was absent.
    """
    return columns_json(
        rows,
        {series.value for panel in panels for series in panel.series}.union(POINT_VALUES),
        kinds=kinds,
        span=span,
        isLive=is_moving,
        policy=policy,
        values=VALUES,
        fleetValues=FLEET_VALUES,
        sequence=run_length_encoded(_differences(sequences)),
        lags={node: run_length_encoded(lag) for node, lag in (lags or {}).items()},
        annotations=[annotation_json(annotation) for annotation in annotations],
    )


def kind_labels(*tables: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the kinds of x axis of some tables, as sent to scripts, with labels; those of the largest table first."""
    kinds = dict.fromkeys(
        kind for table in sorted(tables, key=lambda table: -len(table["kinds"])) for kind, _ in table["kinds"]
    )
    return [(kind, f"by {KIND_LABELS[kind]}") for kind in kinds]


def steps_json(rows: Sequence[Row], *, kinds: Mapping[str, str] = STEP_KINDS, **more: Any) -> dict[str, Any]:
    """Returns the training steps of a run with all their values, for the kinds of x axis that they have."""
    names = {name for _, values in rows for name in values}
    known = {kind: column for kind, column in kinds.items() if column == "at" or column in names}
    return columns_json(rows, names, kinds=known, **more)


def lags_over(points: Sequence[Point], policy: str) -> dict[str, list[int | None]]:
    """Returns how many versions each node was behind at each point, by name; None while the node was absent."""
    lags = [point.lags.get(policy, {}) for point in points]  # type: ignore[call-overload] # a policy's id is its name
    return {name: [at.get(name) for at in lags] for name in sorted({name for at in lags for name in at})}


def run_length_encoded(column: Iterable[object]) -> list[object]:
    """Returns a column in which `[value, times]` replaces a run of equal values.

    >>> run_length_encoded([0.5, 0.5, 0.5, None, 1])
    [[0.5, 3], None, 1]
    """
    runs = ((value, sum(1 for _ in same)) for value, same in groupby(column))
    return [value if times == 1 else [value, times] for value, times in runs]


def _differences(numbers: Sequence[int]) -> list[int]:
    """Returns the first number, then the difference of each number from its predecessor."""
    return [*numbers[:1], *(later - earlier for earlier, later in pairwise(numbers))]


def rows_of(points: Sequence[Point], policy: PolicyId) -> list[Row]:
    """Returns points of one policy as rows."""
    return [
        (
            point.at,
            {name: getattr(point.policies[policy], name) for name in VALUES}
            | {name: getattr(point.fleet, name) for name in FLEET_VALUES},
        )
        for point in points
        if policy in point.policies
    ]


def as_sheet(name: str, rows: Sequence[Row], values: Sequence[str]) -> Sheet:
    """Returns rows with the time in ISO 8601 and Unix seconds."""
    return Sheet(
        name=name,
        columns=("time", "unix_s", *values),
        rows=[
            (
                datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds"),
                round(at, 3),
                *(numbers.get(value) for value in values),
            )
            for at, numbers in rows
        ],
    )


def as_table(panel: Panel, rows: Sequence[Row]) -> Table:
    """Returns about sixty evenly spaced rows, newest first, for people and screen readers."""
    stride = max(1, -(-len(rows) // TABLE_ROWS))
    newest = rows[-1][0] if rows else 0.0
    heads = ("age", *(line.label for line in panel.series))
    body = [
        (
            formats.duration(newest - at),
            *(value_text(values.get(line.value), line.format or panel.format) for line in panel.series),
        )
        for at, values in rows[::-1][::stride]
    ]
    return heads, body
