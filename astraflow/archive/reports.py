"""Reports in the archive: all reports of the last minutes, and one-minute points of the whole run."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import zstandard
from google.protobuf.message import DecodeError

from astraflow.archive.connection import Conditions, decoded_rows, open_recorded
from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.contract.reports.report import Report
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.pb import control_plane_pb2 as pb

_COMPRESSION_LEVEL = 1
"""Compression level: reports of one run are similar, so higher levels gain little and take longer."""


MAX_REPORT_BYTES = 32 * 2**20
"""Largest uncompressed size of one report."""

LAST_ROWS = 5
"""Rows that are tried for the last report, of each table."""

MAX_EXPANSION = 100
"""Largest ratio of uncompressed to compressed size; for a report of 10,000 equal nodes it is about 11."""

EXPANSION_FREE_BYTES = 2**20
"""Uncompressed size up to which any ratio is allowed."""


def read_reports(
    path: Path, *, resolution_s: int, on_skipped: Callable[[CorruptData], None] | None = None
) -> Iterator[Report]:
    """Yields the reports in a run's archive, oldest first; the run may have ended.

    resolution_s: 60 for one-minute points, 1 for all reports. on_skipped: called for each unreadable row. Raises:
    InvalidInput when there is no such file; CorruptData for an unreadable row without `on_skipped`.
    """
    table = "minutes" if resolution_s == 60 else "seconds"
    if not path.is_file():
        raise InvalidInput(
            f"cannot read the history {str(path)!r}: there is no such file; give the folder of a run, which has "
            f"dataflow/{path.name}",
            code="archive.missing",
        )
    with closing(open_recorded(path)) as database:
        try:
            for (body,) in database.execute(f"select body from {table} order by sequence"):  # noqa: S608 (one of two)
                try:
                    report = decompress_report(body)
                except CorruptData as problem:
                    if on_skipped is None:
                        raise
                    on_skipped(problem)
                    continue
                yield report
        except sqlite3.DatabaseError as problem:
            raise InvalidInput(
                f"cannot read the history {str(path)!r}: {problem}; restore it from a backup if it is "
                "damaged, or use the release that wrote it",
                code="archive.unsupported",
            ) from None


def find_last_report(database: sqlite3.Connection) -> Report | None:
    """Returns the last readable report of an archive; None without one."""
    for table in ("seconds", "minutes"):
        for (body,) in database.execute(f"select body from {table} order by sequence desc limit {LAST_ROWS}"):  # noqa: S608 (constants)
            try:
                return decompress_report(body)
            except CorruptData:
                continue  # the row before it may be readable
    return None


def compress_report(report: Report) -> bytes:
    """Report -> body of its row."""
    return zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).compress(
        to_message(report, pb.Report).SerializeToString()
    )


def decompress_report(body: bytes) -> Report:
    """Returns the report in the body of a row. Raises: CorruptData."""
    message = decompress_body(body)
    try:
        return from_message(pb.Report.FromString(message), Report)
    except (ArithmeticError, DecodeError, LookupError, TypeError, ValueError, InvalidInput) as problem:
        raise CorruptData(
            f"cannot read a recorded report: {type(problem).__name__} ({problem}); use the release that wrote it",
            code="archive.corrupt_row",
        ) from problem


def decompress_body(body: bytes) -> bytes:
    """Returns the message in the body of a row. Raises: CorruptData for damaged bytes and for an oversized message.

    Checks the declared size of the frame before it allocates memory; zstd enforces the declared size.
    """
    try:
        size_bytes = zstandard.frame_content_size(body)
        bound_bytes = min(MAX_REPORT_BYTES, EXPANSION_FREE_BYTES + MAX_EXPANSION * len(body))
        if not 0 <= size_bytes <= bound_bytes:
            raise CorruptData(
                f"cannot read a recorded report: {len(body)} bytes declare {size_bytes} bytes, more than "
                f"{bound_bytes}; restore the archive from a copy",
                code="archive.corrupt_row",
            )
        return zstandard.ZstdDecompressor().decompress(body)
    except (TypeError, zstandard.ZstdError) as problem:
        raise CorruptData(
            f"cannot read a recorded report: {problem}; restore the archive from a copy", code="archive.corrupt_row"
        ) from problem


MAX_STORED_ROUNDS = 10_000
"""Number of rounds that the archive retains, the latest first."""

INSERT_ROUND = "insert or replace into rounds values (?, ?)"
DELETE_OLD_ROUNDS = "delete from rounds where round <= (select round from rounds order by round desc limit 1 offset ?)"


def round_columns(report: EvaluationReport) -> tuple[int, bytes]:
    """Returns the row of a round, for `INSERT_ROUND`."""
    return report.round, to_message(report, pb.EvaluationReport).SerializeToString()


def find_rounds(database: sqlite3.Connection, *, before: int | None, limit: int) -> list[EvaluationReport]:
    """Returns the rounds older than `before`, newest first."""
    conditions = Conditions()
    conditions.add("round < ?", before)
    select = f"select round, body from rounds where {conditions.text} order by round desc limit ?"  # noqa: S608 (values are apart)
    rows = database.execute(select, (*conditions.values, limit))
    return list(decoded_rows(rows, _round, table="rounds"))


def _round(row: tuple[Any, ...]) -> EvaluationReport:
    return from_message(pb.EvaluationReport.FromString(row[1]), EvaluationReport)
