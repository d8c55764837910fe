"""Files of what a page shows."""

import csv
import io
import json

from web.reading.exports import Sheet, sheet_answer

SHEET = Sheet(name="nodes", columns=("node", "rate"), rows=[("a, b", 1.5), ("=cmd()", None)])


def test_both_files_have_the_rows_of_the_sheet() -> None:
    as_json = sheet_answer(SHEET, "json")
    as_csv = sheet_answer(SHEET, "csv")

    assert json.loads(bytes(as_json.body)) == [{"node": "a, b", "rate": 1.5}, {"node": "=cmd()", "rate": None}]
    assert list(csv.reader(io.StringIO(bytes(as_csv.body).decode()))) == [
        ["node", "rate"],
        ["a, b", "1.5"],
        ["'=cmd()", ""],
    ]
    assert as_csv.headers["content-disposition"] == 'attachment; filename="nodes.csv"'
