"""What a page shows, as a file: CSV for spreadsheets, JSON for programs, both exactly the rows that are shown."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fastapi.responses import Response

Ending = Literal["csv", "json"]
"""What an address that gives a file ends in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A table to take away."""

    name: str
    """Of the file, without its ending."""
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    """Numbers, texts, truths and None, as many as there are columns."""


def sheet_answer(sheet: Sheet, ending: Ending) -> Response:
    """The table as a file for the browser to keep."""
    text = _as_json(sheet) if ending == "json" else csv_text([sheet.columns, *sheet.rows])
    media_type = "application/json" if ending == "json" else "text/csv; charset=utf-8"
    headers = {"content-disposition": f'attachment; filename="{sheet.name}.{ending}"'}
    return Response(text, media_type=media_type, headers=headers)


def csv_text(rows: Sequence[Sequence[Any]]) -> str:
    """Comma-separated values; what a spreadsheet would take for a formula begins with a quote."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows([[_cell(value) for value in row] for row in rows])
    return text.getvalue()


def _as_json(sheet: Sheet) -> str:
    rows = [dict(zip(sheet.columns, row, strict=True)) for row in sheet.rows]
    return json.dumps(rows, ensure_ascii=False, allow_nan=False)


def _cell(value: Any) -> Any:
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if is_formula else value
