"""Checks of CSV and JSON files before the Hugging Face `datasets` library reads them.

The library ends the process at a JSON value that is nested 100,000 deep, renames the second column of a name, and
rounds large whole numbers in columns that also have fractions or empty cells.
"""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.datasets.tables.lines import MAX_DEPTH

LARGEST_EXACT = 2**53
"""Whole numbers up to it are exact as a number with a fraction."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]|(?<![\d.eE+])\d{16,}+(?![\d.eE])')
_EXACT_DIGITS = len(str(LARGEST_EXACT))
_STEP = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}
_CELL = re.compile(rb"(?<![\w.+])\d{16,}+(?![\w.])")


def check_json_file(path: Path) -> bool:
    """Returns whether a file has whole numbers above `LARGEST_EXACT`. Raises: InvalidInput for a value nested too
    deeply."""
    depth, has_large = 0, False
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            for token in _TOKEN.findall(line):
                depth += _STEP.get(token, 0)
                has_large = has_large or (token.isdigit() and _is_large(token))
                if depth > MAX_DEPTH:
                    raise InvalidInput(
                        f"cannot read {str(path)!r}, line {number}: it is nested more than {MAX_DEPTH} deep; correct "
                        "the file",
                        code="dataset.unreadable",
                    )
    return has_large


def check_csv_file(path: Path) -> bool:
    """Returns whether a file has whole numbers above `LARGEST_EXACT`. Raises: InvalidInput for a repeated column."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as text:
        names = next(filter(None, _records(text)), [])
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInput(
            f"cannot read {str(path)!r}: it has several columns {repeated[0]!r}; rename all but one",
            code="dataset.repeated_column",
        )
    with path.open("rb") as lines:
        return any(_is_large(digits) for line in lines for digits in _CELL.findall(line))


def _is_large(digits: bytes) -> bool:
    return len(digits) > _EXACT_DIGITS or int(digits) > LARGEST_EXACT


def _records(text: Iterator[str]) -> Iterator[list[str]]:
    try:
        yield from csv.reader(text)
    except csv.Error:  # the library says what is wrong with the file
        return
