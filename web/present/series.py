"""Exactly what a chart plots, as rows: for its table, CSV and JSON."""

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime

from web.present import charts, formats, scales

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Heads and rows."""

TABLE_ROWS = 60


def as_csv(rows: Sequence[charts.Row], values: Sequence[str]) -> str:
    """Comma separated, with the time in ISO 8601 and Unix seconds; nothing measured is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("time", "unix_s", *values))
    for at, numbers in rows:
        fields = ("" if (value := numbers.get(name)) is None else value for name in values)
        writer.writerow((datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds"), round(at, 3), *fields))
    return text.getvalue()


def as_table(spec: charts.ChartSpec, rows: Sequence[charts.Row]) -> Table:
    """About sixty evenly spaced rows, newest first, read by people and by screen readers."""
    stride = max(1, -(-len(rows) // TABLE_ROWS))
    newest = rows[-1][0] if rows else 0.0
    chosen = rows[::-1][::stride]
    heads = ("before the newest", *(line.label for line in spec.lines))
    body = [
        (
            formats.duration(newest - at),
            *(scales.value_text(values.get(line.value), spec.format) for line in spec.lines),
        )
        for at, values in chosen
    ]
    return heads, body
