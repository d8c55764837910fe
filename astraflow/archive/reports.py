"""Reports, as rows of the archive: every one of the last minutes, and one point a minute of the whole run."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import zstandard

from astraflow.archive.opening import reopened
from astraflow.contract.errors import InvalidInput
from astraflow.contract.reports import Report
from astraflow.wire.codec_control import decode_report, encode_report
from astraflow.wire.pb import control_plane_pb2 as pb

_LEVEL = 1
"""Of the compression: reports of one run are much alike, higher levels gain little and take longer."""


def recorded(path: Path, *, resolution_s: int) -> Iterator[Report]:
    """Reports of a run that may have ended, oldest first, from its file.

    resolution_s: 60 for the points, 1 for the reports. Raises: InvalidInput when there is no such file.
    """
    table = "minutes" if resolution_s == 60 else "seconds"
    if not path.is_file():
        raise InvalidInput(f"there is no history at {path}: give the folder of a run, which has dataflow/{path.name}")
    with closing(reopened(path)) as database:
        try:
            for (body,) in database.execute(f"select body from {table} order by sequence"):  # noqa: S608 (one of two)
                yield unpacked(body)
        except sqlite3.DatabaseError as problem:
            raise InvalidInput(f"{path} holds no history that this release can read: {problem}") from None


def packed(report: Report) -> bytes:
    """A report -> the body of its row."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(encode_report(report).SerializeToString())


def unpacked(body: bytes) -> Report:
    """The body of a row -> its report."""
    return decode_report(pb.Report.FromString(inflated(body)))


def inflated(body: bytes) -> bytes:
    """The body of a row -> the message that it holds."""
    return zstandard.ZstdDecompressor().decompress(body)
