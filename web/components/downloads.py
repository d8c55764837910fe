"""Downloads of page data: CSV for spreadsheets and JSON for programs, with exactly the shown rows."""

import csv
import io
import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from fastapi.responses import Response

T = TypeVar("T")

FileFormat = Literal["csv", "json"]
"""Extension of a download address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """Table for download."""

    name: str
    """File name without extension."""
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    """Rows of numbers, texts, booleans and None, one value per column."""

    @classmethod
    def of(cls, name: str, items: Iterable[T], columns: Mapping[str, Callable[[T], Any]]) -> "Sheet":
        """Returns a sheet with a row for each item. columns: what each column reads from an item."""
        rows = [[read(item) for read in columns.values()] for item in items]
        return cls(name=name, columns=tuple(columns), rows=rows)


def sheet_response(sheet: Sheet, ending: FileFormat) -> Response:
    """Returns the table as a file download."""
    text = _as_json(sheet) if ending == "json" else csv_text([sheet.columns, *sheet.rows])
    media_type = "application/json" if ending == "json" else "text/csv; charset=utf-8"
    headers = {"content-disposition": f'attachment; filename="{sheet.name}.{ending}"'}
    return Response(text, media_type=media_type, headers=headers)


def csv_text(rows: Sequence[Sequence[Any]]) -> str:
    """Returns comma-separated values; values that a spreadsheet would read as a formula get a leading quote."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows([[_cell(value) for value in row] for row in rows])
    return text.getvalue()


def _as_json(sheet: Sheet) -> str:
    rows = [dict(zip(sheet.columns, row, strict=True)) for row in sheet.rows]
    return json.dumps(rows, ensure_ascii=False, allow_nan=False)


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and _is_formula(value) else value


def _is_formula(text: str) -> bool:
    """Returns whether a spreadsheet may read the text as a formula: it begins with a control character, or with a sign
    of any width, possibly after characters that a spreadsheet leaves out."""
    if not text or unicodedata.category(text[0]) == "Cc":
        return bool(text)
    first = next((character for character in text if unicodedata.category(character)[0] not in "CZ"), "")
    return unicodedata.normalize("NFKC", first).startswith(("=", "+", "-", "\N{MINUS SIGN}", "@"))
