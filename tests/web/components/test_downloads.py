"""Files with the rows that a page shows."""

import csv
import io
import json

from web.components.downloads import Sheet, sheet_response

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
