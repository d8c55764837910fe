"""The reports that a run left in its folder, and its latest events: how it went, told once more."""

import sqlite3
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from astraflow.archive.opening import PLACE
from astraflow.archive.reports import recorded
from astraflow.contract.errors import CorruptData
from astraflow.contract.reports import Report

SECOND_S, MINUTE_S = 1, 60


def kept_reports(folder: Path, *, on_skipped: Callable[[CorruptData], None]) -> Iterator[Report]:
    """Yields the minutes before the oldest second that is kept, then the seconds; by their sequence.

    on_skipped: called for each row that cannot be read.
    Raises: InvalidInput for a folder without any, CorruptData where the file itself cannot be read.
    """
    file = folder / PLACE
    try:
        seconds = recorded(file, resolution_s=SECOND_S, on_skipped=on_skipped)
        first = next(seconds, None)
        for point in recorded(file, resolution_s=MINUTE_S, on_skipped=on_skipped):
            if first is None or point.sequence < first.sequence:
                yield point
        yield from chain([first] if first else [], seconds)
    except sqlite3.Error as problem:
        raise CorruptData(f"cannot read the reports in {file}: {problem}") from problem
