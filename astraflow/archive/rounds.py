"""Rounds of evaluations that ended, as rows of the archive."""

import sqlite3

from astraflow.archive.conditions import Conditions
from astraflow.contract.evaluations import EvaluationReport
from astraflow.wire.codec_evaluations import decode_evaluation, encode_evaluation
from astraflow.wire.pb import control_plane_pb2 as pb

KEPT_ROUNDS = 10_000
"""The latest so many stay."""

PUT = "insert or replace into rounds values (?, ?)"
TRIM = "delete from rounds where round <= (select round from rounds order by round desc limit 1 offset ?)"


def round_columns(report: EvaluationReport) -> tuple[int, bytes]:
    """A row, for `PUT`."""
    return report.round, encode_evaluation(report).SerializeToString()


def find_rounds(database: sqlite3.Connection, *, before: int | None, limit: int) -> list[EvaluationReport]:
    """Those older than the round `before`, newest first."""
    conditions = Conditions()
    conditions.add("round < ?", before)
    select = f"select body from rounds where {conditions.text} order by round desc limit ?"  # noqa: S608 (values are apart)
    rows = database.execute(select, (*conditions.values, limit))
    return [decode_evaluation(pb.EvaluationReport.FromString(body)) for (body,) in rows]
