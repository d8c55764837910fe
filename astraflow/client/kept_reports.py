"""The reports that a run left in its folder, and its latest events: how it went, told once more."""

import sqlite3
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from google.protobuf.message import DecodeError
from zstandard import ZstdError

from astraflow.archive.opening import PLACE
from astraflow.archive.reports import recorded
from astraflow.contract.errors import CorruptData
from astraflow.contract.reports import Report

SECOND_S, MINUTE_S = 1, 60


def kept_reports(folder: Path) -> Iterator[Report]:
    """Points of the minutes before the oldest second that is kept, then the seconds; by their sequence.

    Raises: InvalidInput for a folder without any, CorruptData where one cannot be read.
    """
    file = folder / PLACE
    try:
        seconds = recorded(file, resolution_s=SECOND_S)
        first = next(seconds, None)
        for point in recorded(file, resolution_s=MINUTE_S):
            if first is None or point.sequence < first.sequence:
                yield point
        yield from chain([first] if first else [], seconds)
    except (DecodeError, ZstdError, sqlite3.Error, TypeError, ValueError) as problem:
        raise CorruptData(f"{file} holds a report that this release cannot read: {problem}") from problem
