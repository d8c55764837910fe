"""Data of the charts of a page: run-length encoded columns of numbers.

Most numbers stay the same for seconds or minutes, so columns are far smaller than the same numbers point by point.
`static/js/points.js` reads it.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import Any

from astraflow.contract.ids import PolicyId
from web.charts import charts, scales
from web.charts.charts import ChartSpec, Row
from web.components import formats
from web.components.downloads import Sheet
from web.history.capacity import FLEET_VALUES
from web.history.points import VALUES, Point, rounded
from web.state.annotations import Annotation, annotation_json

ALWAYS_SENT_VALUES = ("version",)
"""Values that scripts read besides the lines of their charts."""

CENTISECONDS = 100


def chart_data(
    policy: str,
    rows: Sequence[Row],
    specs: Iterable[ChartSpec],
    *,
    sequences: Sequence[int],
    lags: Mapping[str, Sequence[int | None]] | None = None,
    annotations: Sequence[Annotation] = (),
    is_moving: bool = True,
) -> dict[str, Any]:
    """Returns the rows of one policy, oldest first, reduced to the values that these charts draw.

    sequences: sequence of the report behind each row. lags: versions behind, by node, one for each row; None while the
    node was absent. Times and sequences are sent as differences, times in hundredths of a second.
    """
    names = sorted({line.value for spec in specs for line in spec.lines}.union(ALWAYS_SENT_VALUES))
    times = [round(at * CENTISECONDS) for at, _ in rows]
    return {
        "isLive": is_moving,
        "policy": policy,
        "values": VALUES,
        "fleetValues": FLEET_VALUES,
        "sequence": run_length_encoded(_differences(sequences)),
        "at": run_length_encoded(_differences(times)),
        "columns": {name: run_length_encoded([rounded(values.get(name)) for _, values in rows]) for name in names},
        "lags": {node: run_length_encoded(lag) for node, lag in (lags or {}).items()},
        "annotations": [annotation_json(annotation) for annotation in annotations],
    }


def lags_over(points: Sequence[Point], policy: str, names: Sequence[str]) -> dict[str, list[int | None]]:
    """Returns how many versions each of these nodes was behind at each point; None while the node was absent."""
    lags = [point.lags.get(policy, {}) for point in points]  # type: ignore[call-overload] # a policy's id is its name
    return {name: [at.get(name) for at in lags] for name in names}


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
    """Returns points of one policy as chart rows."""
    return [
        (
            point.at,
            {name: getattr(point.policies[policy], name) for name in VALUES}
            | {name: getattr(point.fleet, name) for name in FLEET_VALUES},
        )
        for point in points
        if policy in point.policies
    ]


Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Headings and rows."""

TABLE_ROWS = 60


def as_sheet(name: str, rows: Sequence[charts.Row], values: Sequence[str]) -> Sheet:
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


def as_table(spec: charts.ChartSpec, rows: Sequence[charts.Row]) -> Table:
    """Returns about sixty evenly spaced rows, newest first, for people and screen readers."""
    stride = max(1, -(-len(rows) // TABLE_ROWS))
    newest = rows[-1][0] if rows else 0.0
    sampled = rows[::-1][::stride]
    heads = ("age", *(line.label for line in spec.lines))
    body = [
        (
            formats.duration(newest - at),
            *(scales.value_text(values.get(line.value), line.format or spec.format) for line in spec.lines),
        )
        for at, values in sampled
    ]
    return heads, body
