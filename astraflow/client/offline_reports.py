"""Recorded reports and latest events of a run, read from its folder."""

import sqlite3
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from astraflow.archive.connection import ARCHIVE_PATH
from astraflow.archive.reports import read_reports
from astraflow.contract.errors import CorruptData
from astraflow.contract.reports import Report

SECOND_S, MINUTE_S = 1, 60


def offline_reports(folder: Path, *, on_skipped: Callable[[CorruptData], None]) -> Iterator[Report]:
    """Yields the one-minute points before the oldest one-second report, then the one-second reports; by sequence.

    on_skipped: called for each unreadable row. Raises: InvalidInput for a folder without reports, CorruptData for an
    unreadable file.
    """
    file = folder / ARCHIVE_PATH
    try:
        seconds = read_reports(file, resolution_s=SECOND_S, on_skipped=on_skipped)
        first = next(seconds, None)
        for point in read_reports(file, resolution_s=MINUTE_S, on_skipped=on_skipped):
            if first is None or point.sequence < first.sequence:
                yield point
        yield from chain([first] if first else [], seconds)
    except sqlite3.Error as problem:
        raise CorruptData(
            f"cannot read the reports in {str(file)!r}: {problem}; restore the file from a copy",
            code="archive.unreadable",
        ) from problem
