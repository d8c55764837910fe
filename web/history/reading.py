"""Reads a subject's numbers over any stretch of time, at the finest level that fits."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlmodel import Session, col

from web.history.levels import HIGHEST, LEVELS, SECONDS, Level
from web.tables import SeriesName

Row = tuple[float, dict[str, float | None]]
"""Unix seconds, and the numbers then by their names; None where there is none."""

AT_MOST = 600
"""Rows of one answer unless another number is asked for: about a chart's pixels."""

FINER = 4
"""A level is read although it has up to so many times the rows; neighbours are put together then."""


def rows(
    session: Session,
    run_id: int,
    subject: str,
    values: Sequence[str],
    *,
    since: float | None = None,
    until: float | None = None,
    at_most: int = AT_MOST,
) -> list[Row]:
    """Numbers of one subject, oldest first, from `since` to before `until` (None: as far as there is any).

    The finest level is read that has not many more rows than `at_most`, and neighbours are put together until they
    are no more. Where it does not reach back far enough, coarser ones fill in before it; where it is not rolled up
    yet, finer ones go on after it.
    """
    series = _series(session, run_id, subject, values)
    ends = _ends(session, series)
    if ends is None:
        return []
    since = ends[0] if since is None else max(since, ends[0])
    until = ends[1] + 1.0 if until is None else min(until, ends[1] + 1.0)
    chosen = next((level for level in LEVELS if (until - since) / level.width_s <= FINER * at_most), LEVELS[-1])
    found: dict[float, dict[str, float | None]] = {}

    def take(level: Level, since: float, until: float) -> float:
        """Returns up to where the level had something."""
        end = since
        for at, value, number in _numbers(session, level, series, since=since, until=until):
            found.setdefault(at, dict.fromkeys(values))[value] = number
            end = max(end, at + level.width_s)
        return end

    place = LEVELS.index(chosen)
    end = since
    for level in LEVELS[place::-1]:
        end = take(level, end, until)
    for coarser in LEVELS[place + 1 :]:
        take(coarser, since, min(found) - coarser.width_s + 0.5 if found else until)
    return _thinned(sorted(found.items()), at_most)


def subjects(session: Session, run_id: int, kind: str) -> list[str]:
    """Names of all subjects of a kind (`policy`, `node`), in order."""
    prefix = f"{kind}/"
    query = select(col(SeriesName.subject)).where(
        col(SeriesName.run_id) == run_id, col(SeriesName.subject).startswith(prefix, autoescape=True)
    )
    found = session.execute(query.distinct()).scalars()
    return sorted(subject.removeprefix(prefix) for subject in found)


def leaders(session: Session, run_id: int, kind: str, value: str, *, at_most: int) -> list[str]:
    """Names of the subjects of a kind whose value was highest at some time, in order of their names."""
    prefix = f"{kind}/"
    found: dict[str, float] = {}
    for level in LEVELS[1:]:
        table: Any = level.table
        query = (
            select(col(SeriesName.subject), func.max(table.high))
            .join(table, table.series_id == col(SeriesName.id))
            .where(
                col(SeriesName.run_id) == run_id,
                col(SeriesName.value) == value,
                col(SeriesName.subject).startswith(prefix, autoescape=True),
            )
            .group_by(col(SeriesName.subject))
            .order_by(func.max(table.high).desc(), col(SeriesName.subject))
            .limit(at_most)
        )
        for subject, highest in session.execute(query).all():
            found[subject] = max(highest, found.get(subject, highest))
    ranked = sorted(found, key=lambda subject: (-found[subject], subject))[:at_most]
    return sorted(subject.removeprefix(prefix) for subject in ranked)


def _thinned(ordered: list[Row], at_most: int) -> list[Row]:
    """Neighbours together, each lot under its first time, until there are at most so many."""
    stride = max(1, -(-len(ordered) // at_most))
    if stride == 1:
        return ordered
    return [_together(ordered[place : place + stride]) for place in range(0, len(ordered), stride)]


def _together(lot: Sequence[Row]) -> Row:
    numbers: dict[str, float | None] = {}
    for name in lot[0][1]:
        measured = [number for _, row in lot if (number := row[name]) is not None]
        highest = max(measured, default=None)
        numbers[name] = highest if name in HIGHEST or highest is None else sum(measured) / len(measured)
    return lot[0][0], numbers


def _series(session: Session, run_id: int, subject: str, values: Iterable[str]) -> dict[int, str]:
    query = select(SeriesName).where(col(SeriesName.run_id) == run_id, col(SeriesName.subject) == subject)
    rows, wanted = session.execute(query).scalars(), set(values)
    return {row.id: row.value for row in rows if row.id is not None and row.value in wanted}


def _ends(session: Session, series: dict[int, str]) -> tuple[float, float] | None:
    """Times of the oldest and of the newest row of any level."""
    found: list[float] = []
    for level in LEVELS:
        table: Any = level.table
        for series_id in series:
            for end in (func.min(table.at), func.max(table.at)):  # apart, each is one look at the key
                at = session.execute(select(end).where(table.series_id == series_id)).scalar_one()
                found += [] if at is None else [at]
    return (min(found), max(found)) if found else None


def _numbers(
    session: Session, level: Level, series: dict[int, str], *, since: float, until: float
) -> Iterator[tuple[float, str, float]]:
    """Time, name and number of every row of a level in a stretch of time."""
    table: Any = level.table
    for series_id, value in series.items():
        number = table.high if value in HIGHEST and level is not SECONDS else table.number
        query = select(table.at, number).where(table.series_id == series_id, table.at >= since, table.at < until)
        for at, found in session.execute(query).all():
            if isinstance(found, int | float) and math.isfinite(found):
                yield at, value, found
