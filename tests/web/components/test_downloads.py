"""Files with the rows that a page shows."""

import csv
import io
import json

import pytest

from web.components.downloads import Sheet, csv_text, sheet_response

SHEET = Sheet(name="nodes", columns=("node", "rate"), rows=[("a, b", 1.5), ("=cmd()", None)])


def test_csv_and_json_have_the_rows_of_the_sheet() -> None:
    as_json = sheet_response(SHEET, "json")
    as_csv = sheet_response(SHEET, "csv")

    assert json.loads(bytes(as_json.body)) == [{"node": "a, b", "rate": 1.5}, {"node": "=cmd()", "rate": None}]
    assert list(csv.reader(io.StringIO(bytes(as_csv.body).decode()))) == [
        ["node", "rate"],
        ["a, b", "1.5"],
        ["'=cmd()", ""],
    ]
    assert as_csv.headers["content-disposition"].split("; ") == ["attachment", 'filename="nodes.csv"']


@pytest.mark.parametrize(
    "value",
    [
        *("=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "\v=1", "\0=1", "\x1b=1"),
        *("\uff1d1", "\uff0b1", "\uff0d1", "\uff20SUM(1)", "\ufe661", "\ufe621", "\ufe631", "\ufe6bSUM(1)", "\u22121"),
        *(" =1", "\u3000=1", "\u00a0@x", "\u200b=1", "\ufeff=1", "\u202e+1", "\n\uff1d1"),
    ],
)
def test_a_cell_that_a_spreadsheet_may_run_begins_with_a_quote(value: str) -> None:
    assert next(csv.reader(io.StringIO(csv_text([["a", value]]), newline=""))) == ["a", f"'{value}"]


@pytest.mark.parametrize("value", ["", " ", "node-1", "a=b", "1-2", "\u00e9t\u00e9", "3 + 4", -1.5])
def test_any_other_cell_is_unchanged(value: object) -> None:
    assert next(csv.reader(io.StringIO(csv_text([["a", value]]), newline=""))) == ["a", str(value)]
