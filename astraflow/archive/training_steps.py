"""Training steps in the archive: one row for each acknowledged step of each policy, for ever."""

import sqlite3

from astraflow.archive.connection import decoded_rows
from astraflow.contract.reports.training_steps import TrainingStep, TrainingStepPage, TrainingStepQuery
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.pb import control_plane_pb2 as pb

INSERT_STEP = "insert or replace into training_steps values (?, ?, ?)"

PAGE_BYTES = 2**20
"""Size limit of a page's rows."""


def step_columns(step: TrainingStep) -> tuple[str, int, bytes]:
    """Returns the row of a step, for `INSERT_STEP`."""
    return step.policy, step.step, to_message(step, pb.TrainingStep).SerializeToString()


def step_from_row(row: tuple[object, ...]) -> TrainingStep:
    """Returns the step of a row, whose last column is the body. Raises: errors of protobuf and contract types."""
    body = row[-1]
    if not isinstance(body, bytes):
        raise TypeError(f"the body of a step is {type(body).__name__}")
    return from_message(pb.TrainingStep.FromString(body), TrainingStep)


def find_steps(database: sqlite3.Connection, query: TrainingStepQuery) -> TrainingStepPage:
    """Returns one page of steps, oldest first; none from the archive of a release that recorded no steps."""
    if not database.execute("select 1 from sqlite_master where name = 'training_steps'").fetchone():
        return TrainingStepPage(steps=(), has_more=False)
    select = "select step, body from training_steps where policy = ? and step > ? order by step limit ?"
    rows: list[tuple[object, ...]] = []
    size_bytes, has_more = 0, False
    for row in database.execute(select, (query.policy, query.after, query.limit + 1)):
        size_bytes += len(row[1])
        if len(rows) == query.limit or (rows and size_bytes > PAGE_BYTES):
            has_more = True
            break
        rows.append(row)
    return TrainingStepPage(steps=tuple(decoded_rows(rows, step_from_row, table="training_steps")), has_more=has_more)
