"""Reports, as rows of the archive: every one of the last minutes, and one point a minute of the whole run."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import zstandard
from google.protobuf.message import DecodeError

from astraflow.archive.opening import reopened
from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.reports import Report
from astraflow.wire.codec_control import decode_report, encode_report
from astraflow.wire.pb import control_plane_pb2 as pb

_LEVEL = 1
"""Of the compression: reports of one run are much alike, higher levels gain little and take longer."""


MAX_REPORT_BYTES = 32 * 2**20
"""Largest message of one report: what a row may expand to."""

MAX_EXPANSION = 100
"""Largest ratio of a message to its compressed bytes; that of a report of 10,000 equal nodes is about 11."""

EXPANSION_FREE_BYTES = 2**20
"""Messages up to this size may have any ratio."""


def recorded(
    path: Path, *, resolution_s: int, on_skipped: Callable[[CorruptData], None] | None = None
) -> Iterator[Report]:
    """Yields the reports in the file of a run, oldest first; the run may have ended.

    resolution_s: 60 for the points, 1 for the reports. on_skipped: called for each row that cannot be read.
    Raises: InvalidInput when there is no such file; CorruptData for a row that cannot be read, without `on_skipped`.
    """
    table = "minutes" if resolution_s == 60 else "seconds"
    if not path.is_file():
        raise InvalidInput(f"there is no history at {path}: give the folder of a run, which has dataflow/{path.name}")
    with closing(reopened(path)) as database:
        try:
            for (body,) in database.execute(f"select body from {table} order by sequence"):  # noqa: S608 (one of two)
                try:
                    report = unpacked(body)
                except CorruptData as problem:
                    if on_skipped is None:
                        raise
                    on_skipped(problem)
                    continue
                yield report
        except sqlite3.DatabaseError as problem:
            raise InvalidInput(f"{path} holds no history that this release can read: {problem}") from None


def packed(report: Report) -> bytes:
    """A report -> the body of its row."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(encode_report(report).SerializeToString())


def unpacked(body: bytes) -> Report:
    """Returns the report in the body of a row. Raises: CorruptData."""
    message = inflated(body)
    try:
        return decode_report(pb.Report.FromString(message))
    except (ArithmeticError, DecodeError, LookupError, TypeError, ValueError, InvalidInput) as problem:
        raise CorruptData(f"cannot read a recorded report: {type(problem).__name__}: {problem}") from problem


def inflated(body: bytes) -> bytes:
    """Returns the message in the body of a row. Raises: CorruptData for damaged bytes and for an oversized message.

    The size that the frame declares is checked before anything is allocated; zstd holds a frame to what it declares.
    """
    try:
        size_bytes = zstandard.frame_content_size(body)
        bound_bytes = min(MAX_REPORT_BYTES, EXPANSION_FREE_BYTES + MAX_EXPANSION * len(body))
        if not 0 <= size_bytes <= bound_bytes:
            raise CorruptData(
                f"cannot read a recorded report: {len(body)} bytes declare {size_bytes} bytes, more than {bound_bytes}"
            )
        return zstandard.ZstdDecompressor().decompress(body)
    except (TypeError, zstandard.ZstdError) as problem:
        raise CorruptData(f"cannot read a recorded report: {problem}") from problem
