"""Writes samples, rolls them up, and drops what is older than its level keeps."""

import sys
from collections.abc import Mapping, Sequence, Set
from typing import Any

from sqlalchemy import Select, delete, func, literal, select
from sqlalchemy.dialects import sqlite
from sqlmodel import Session, SQLModel, col

from web.history.levels import LEVELS, ROLLS, SECONDS, Level
from web.history.samples import Sample, node_subject
from web.tables import SeriesName, SeriesRolled

Names = dict[tuple[str, str], int]
"""(subject, value) -> id, of one run."""

ROWS_AT_ONCE = 500
"""Rows in one statement: after minutes away there are tens of thousands, and each takes memory until it is written."""


def names_of(session: Session, run_id: int) -> Names:
    """Every series of a run."""
    columns = (col(SeriesName.subject), col(SeriesName.value), col(SeriesName.id))
    found = session.execute(select(*columns).where(col(SeriesName.run_id) == run_id))
    return {
        (sys.intern(subject), sys.intern(value)): series_id
        for subject, value, series_id in found
        if series_id is not None
    }


def add(session: Session, run_id: int, samples: Sequence[Sample], *, names: Mapping[tuple[str, str], int]) -> Names:
    """Keep samples; those that are there already stay as they are.

    names: the series known so far. Returns the new ones; they are there once the transaction is.
    """
    seen = {(one.subject, value) for one in samples for value, number in one.values.items() if number is not None}
    fresh = _named(session, run_id, seen - names.keys())
    known = {**names, **fresh} if fresh else names
    rows: dict[type[SQLModel], list[dict[str, Any]]] = {}
    for sample in samples:
        found = rows.setdefault(sample.level.table, [])
        for value, number in sample.values.items():
            if number is not None:
                found.append(_row(sample, known[sample.subject, value], float(number)))
        if len(found) >= ROWS_AT_ONCE:
            _keep(session, sample.level.table, found)
            found.clear()
    for table, found in rows.items():
        _keep(session, table, found)
    return fresh


def roll(session: Session, run_id: int, *, since: float, until: float) -> None:
    """Roll up everything from `since` on, and what was left open before it; buckets that end after `until` wait."""
    for source, target in ROLLS:
        rolled = session.get(SeriesRolled, (run_id, target.width_s))
        first = _bucket(since, target)
        starts = [] if rolled is None else [rolled.until]
        from_here = first if rolled is None else max(first, rolled.until)
        end = _bucket(until, target)
        starts += [start for start in _starts(from_here, end, target) if start not in starts]
        for start in starts:
            if start < end:
                _roll_bucket(session, run_id, source, target, start)
        if rolled is None:
            session.add(SeriesRolled(run_id=run_id, width_s=target.width_s, until=max(from_here, end)))
        else:
            rolled.until = max(rolled.until, end)
    session.flush()


def prune(session: Session, run_id: int, *, now: float) -> None:
    """Drop the run's rows that are older than their level keeps, and series of which none is left."""
    own = select(col(SeriesName.id)).where(col(SeriesName.run_id) == run_id)
    is_node = col(SeriesName.subject).startswith(node_subject(""))
    for level in LEVELS:
        table: Any = level.table
        for series, kept_s in ((own.where(~is_node), level.kept_s), (own.where(is_node), level.nodes_kept_s)):
            session.execute(delete(table).where(table.series_id.in_(series), table.at < now - kept_s))
    is_used = [select(literal(1)).where(level.table.series_id == SeriesName.id).exists() for level in LEVELS]  # type: ignore[attr-defined] # each has it
    unused = delete(SeriesName).where(col(SeriesName.run_id) == run_id, *(~used for used in is_used))
    session.execute(unused)


def _keep(session: Session, table: type[SQLModel], rows: list[dict[str, Any]]) -> None:
    if rows:
        session.execute(_insert(session, table).on_conflict_do_nothing(), rows)


def _named(session: Session, run_id: int, keys: Set[tuple[str, str]]) -> Names:
    """Make these series: a thousand nodes that come at once are thousands of them."""
    if not keys:
        return {}
    rows = [{"run_id": run_id, "subject": subject, "value": value} for subject, value in sorted(keys)]
    for first in range(0, len(rows), ROWS_AT_ONCE):
        session.execute(_insert(session, SeriesName), rows[first : first + ROWS_AT_ONCE])
    return {key: series_id for key, series_id in names_of(session, run_id).items() if key in keys}


def _row(sample: Sample, series_id: int, number: float) -> dict[str, Any]:
    row = {"series_id": series_id, "at": sample.at, "number": number}
    return row if sample.level is SECONDS else row | {"low": number, "high": number}


def _roll_bucket(session: Session, run_id: int, source: Level, target: Level, start: float) -> None:
    table: Any = source.table
    low, high = (table.number, table.number) if source is SECONDS else (table.low, table.high)
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
    """An insert that can pass over what is there, as the database at hand writes it.

    Into the table itself: going by its class would take each row of thousands through the mapper.
    """
    rows: Any = table.__table__  # type: ignore[attr-defined] # each class of a table has it
    if session.get_bind().dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql  # whoever keeps all in SQLite has none of its types

        return postgresql.insert(rows)
    return sqlite.insert(rows)


def _bucket(at: float, level: Level) -> float:
    return at // level.width_s * level.width_s


def _starts(first: float, end: float, level: Level) -> list[float]:
    return [first + number * level.width_s for number in range(max(0, round((end - first) / level.width_s)))]
