"""Writes samples, aggregates them, and prunes rows beyond their retention."""

from collections.abc import Mapping, Sequence, Set
from operator import itemgetter
from typing import Any

from sqlalchemy import Select, delete, func, literal, select
from sqlalchemy.dialects import sqlite
from sqlmodel import Session, SQLModel, col

from web.database.tables import SeriesName, SeriesRolled
from web.history.samples import LEVELS, ROLL_UPS, SECOND_LEVEL, Level, Sample, node_subject

SeriesIds = dict[tuple[str, str], int]
"""Series id by (subject, value), of one run."""

ROWS_PER_STATEMENT = 500
"""Rows per statement: after an outage there are tens of thousands, and each takes memory until it is written."""


def series_ids(session: Session, run_id: int) -> SeriesIds:
    """All series of a run."""
    columns = (col(SeriesName.subject), col(SeriesName.value), col(SeriesName.id))
    rows = session.execute(select(*columns).where(col(SeriesName.run_id) == run_id))
    return {(subject, value): series_id for subject, value, series_id in rows if series_id is not None}


def add(session: Session, run_id: int, samples: Sequence[Sample], *, names: Mapping[tuple[str, str], int]) -> SeriesIds:
    """Writes samples; existing rows stay unchanged.

    names: known series. Returns the new series, which exist once the transaction is committed.
    """
    keys = {
        (sample.subject, value) for sample in samples for value, number in sample.values.items() if number is not None
    }
    new_series = _create_series(session, run_id, keys - names.keys())
    series = {**names, **new_series} if new_series else names
    rows: dict[type[SQLModel], list[dict[str, Any]]] = {}
    for sample in samples:
        table_rows = rows.setdefault(sample.level.table, [])
        for value, number in sample.values.items():
            if number is not None:
                table_rows.append(_row(sample, series[sample.subject, value], float(number)))
        if len(table_rows) >= ROWS_PER_STATEMENT:
            insert_rows(session, sample.level.table, table_rows)
            table_rows.clear()
    for table, table_rows in rows.items():
        insert_rows(session, table, table_rows)
    return new_series


def insert_rows(session: Session, table: type[SQLModel], rows: list[dict[str, Any]]) -> None:
    """Inserts rows with all columns of a table; existing ones stay unchanged.

    The statement is compiled once and the rows go to the driver as they are: SQLAlchemy would copy and check each row,
    which takes as long as the database.
    """
    if not rows:
        return
    statement = _insert(session, table).on_conflict_do_nothing().compile(dialect=session.get_bind().dialect)
    parameters = list(map(itemgetter(*statement.positiontup), rows)) if statement.positional else rows
    session.connection().exec_driver_sql(str(statement), parameters)


def roll(session: Session, run_id: int, *, since: float, until: float) -> None:
    """Aggregates from `since` on, and the bucket left open before; buckets that end after `until` wait."""
    for source, target in ROLL_UPS:
        rolled = session.get(SeriesRolled, (run_id, target.width_s))
        first = _bucket(since, target)
        starts = [] if rolled is None else [rolled.until]
        first_open = first if rolled is None else max(first, rolled.until)
        end = _bucket(until, target)
        starts += [start for start in _starts(first_open, end, target) if start not in starts]
        for start in starts:
            if start < end:
                _roll_bucket(session, run_id, source, target, start)
        if rolled is None:
            session.add(SeriesRolled(run_id=run_id, width_s=target.width_s, until=max(first_open, end)))
        else:
            rolled.until = max(rolled.until, end)
    session.flush()


def prune(session: Session, run_id: int, *, now: float) -> None:
    """Deletes the run's rows beyond the retention of their level, and series without rows."""
    run_series = select(col(SeriesName.id)).where(col(SeriesName.run_id) == run_id)
    is_node = col(SeriesName.subject).startswith(node_subject(""))
    for level in LEVELS:
        table: Any = level.table
        for series, retention_s in (
            (run_series.where(~is_node), level.retention_s),
            (run_series.where(is_node), level.node_retention_s),
        ):
            session.execute(delete(table).where(table.series_id.in_(series), table.at < now - retention_s))
    is_used = [select(literal(1)).where(level.table.series_id == SeriesName.id).exists() for level in LEVELS]  # type: ignore[attr-defined] # every level's table has it
    unused = delete(SeriesName).where(col(SeriesName.run_id) == run_id, *(~used for used in is_used))
    session.execute(unused)


def _create_series(session: Session, run_id: int, keys: Set[tuple[str, str]]) -> SeriesIds:
    """Creates these series: a thousand new nodes are thousands of series."""
    if not keys:
        return {}
    rows = [{"run_id": run_id, "subject": subject, "value": value} for subject, value in sorted(keys)]
    for first in range(0, len(rows), ROWS_PER_STATEMENT):
        session.execute(_insert(session, SeriesName), rows[first : first + ROWS_PER_STATEMENT])
    return {key: series_id for key, series_id in series_ids(session, run_id).items() if key in keys}


def _row(sample: Sample, series_id: int, number: float) -> dict[str, Any]:
    row = {"series_id": series_id, "at": sample.at, "number": number}
    return row if sample.level is SECOND_LEVEL else row | {"low": number, "high": number}


def _roll_bucket(session: Session, run_id: int, source: Level, target: Level, start: float) -> None:
    table: Any = source.table
    low, high = (table.number, table.number) if source is SECOND_LEVEL else (table.low, table.high)
    means: Select[Any] = (
        select(table.series_id, literal(start), func.avg(table.number), func.min(low), func.max(high))
        .where(
            table.series_id.in_(select(col(SeriesName.id)).where(col(SeriesName.run_id) == run_id)),
            table.at >= start,
            table.at < start + target.width_s,
        )
        .group_by(table.series_id)
    )
    columns: Sequence[str] = ("series_id", "at", "number", "low", "high")
    session.execute(_insert(session, target.table).from_select(columns, means).on_conflict_do_nothing())


def _insert(session: Session, table: type[SQLModel]) -> Any:
    """Insert statement with conflict handling for the database in use.

    Uses the table itself: using its class would pass thousands of rows through the mapper.
    """
    rows: Any = table.__table__  # type: ignore[attr-defined] # every table class has it
    if session.get_bind().dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql  # not needed with SQLite

        return postgresql.insert(rows)
    return sqlite.insert(rows)


def _bucket(at: float, level: Level) -> float:
    return at // level.width_s * level.width_s


def _starts(first: float, end: float, level: Level) -> list[float]:
    return [first + number * level.width_s for number in range(max(0, round((end - first) / level.width_s)))]
