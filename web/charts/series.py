"""Data of a chart as rows: for its table, CSV and JSON."""

from collections.abc import Sequence
from datetime import UTC, datetime

from web.charts import charts, scales
from web.components import formats
from web.components.downloads import Sheet

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
