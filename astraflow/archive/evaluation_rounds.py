"""Finished evaluation rounds in the archive."""

import sqlite3
from typing import Any

from astraflow.archive.conditions import Conditions
from astraflow.archive.connection import decoded_rows
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.pb import control_plane_pb2 as pb

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
