"""Reads a subject's values over any time range, at the finest suitable level."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlmodel import Session, col

from web.database.tables import SeriesName
from web.history.samples import LEVELS, MAX_VALUES, SECOND_LEVEL, Level

Row = tuple[float, dict[str, float | None]]
"""Unix seconds, and the values by name; None if there is none."""

MAX_ROWS = 600
"""Default rows of an answer: about the pixels of a chart."""

MAX_OVERSAMPLING = 4
"""Maximum ratio of a level's rows to the requested rows; neighbours are then merged."""


def rows(
    session: Session,
    run_id: int,
    subject: str,
    values: Sequence[str],
    *,
    since: float | None = None,
    until: float | None = None,
    at_most: int = MAX_ROWS,
) -> list[Row]:
    """Values of one subject, oldest first, from `since` to before `until` (None: as far as recorded).

    A coarse row has the maximum of `MAX_VALUES` and the mean of others.

    Reads the finest level without many more rows than `at_most`, and merges neighbours until there are no more. Where
    that level does not reach back far enough, coarser levels are used before it; where it is not aggregated yet, finer
    ones after it.
    """
    series = _series(session, run_id, subject, values)
    recorded_range = _recorded_range(session, series)
    if recorded_range is None:
        return []
    since = recorded_range[0] if since is None else max(since, recorded_range[0])
    until = recorded_range[1] + 1.0 if until is None else min(until, recorded_range[1] + 1.0)
    chosen = next(
        (level for level in LEVELS if (until - since) / level.width_s <= MAX_OVERSAMPLING * at_most), LEVELS[-1]
    )
    rows_by_time: dict[float, dict[str, float | None]] = {}

    def add_rows(level: Level, since: float, until: float) -> float:
        """Adds the rows of a level; returns the time up to which it had some."""
        end = since
        for at, value, number in _numbers(session, level, series, since=since, until=until):
            rows_by_time.setdefault(at, dict.fromkeys(values))[value] = number
            end = max(end, at + level.width_s)
        return end

    index = LEVELS.index(chosen)
    end = since
    for level in LEVELS[index::-1]:
        end = add_rows(level, end, until)
    for coarser in LEVELS[index + 1 :]:
        add_rows(coarser, since, min(rows_by_time) - coarser.width_s + 0.5 if rows_by_time else until)
    return _merged_rows(sorted(rows_by_time.items()), at_most)


def values_of(session: Session, run_id: int, subject: str) -> list[str]:
    """Names of the values of a subject, sorted."""
    query = select(col(SeriesName.value)).where(col(SeriesName.run_id) == run_id, col(SeriesName.subject) == subject)
    return sorted(session.execute(query).scalars())


def subjects(session: Session, run_id: int, kind: str) -> list[str]:
    """Names of all subjects of a kind (`policy`, `node`), sorted."""
    prefix = f"{kind}/"
    query = select(col(SeriesName.subject)).where(
        col(SeriesName.run_id) == run_id, col(SeriesName.subject).startswith(prefix, autoescape=True)
    )
    subjects_of_kind = session.execute(query.distinct()).scalars()
    return sorted(subject.removeprefix(prefix) for subject in subjects_of_kind)


def highest_subjects(session: Session, run_id: int, kind: str, value: str, *, at_most: int) -> list[str]:
    """Names of the subjects of a kind with the highest values at any time, sorted by name."""
    prefix = f"{kind}/"
    maxima: dict[str, float] = {}
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
            maxima[subject] = max(highest, maxima.get(subject, highest))
    ranked = sorted(maxima, key=lambda subject: (-maxima[subject], subject))[:at_most]
    return sorted(subject.removeprefix(prefix) for subject in ranked)


def _merged_rows(ordered: list[Row], at_most: int) -> list[Row]:
    """Merges neighbours, each group at its first time, until there are at most `at_most` rows."""
    stride = max(1, -(-len(ordered) // at_most))
    if stride == 1:
        return ordered
    return [_merged(ordered[index : index + stride]) for index in range(0, len(ordered), stride)]


def _merged(group: Sequence[Row]) -> Row:
    numbers: dict[str, float | None] = {}
    for name in group[0][1]:
        measured = [number for _, row in group if (number := row[name]) is not None]
        highest = max(measured, default=None)
        numbers[name] = highest if name in MAX_VALUES or highest is None else sum(measured) / len(measured)
    return group[0][0], numbers


def _series(session: Session, run_id: int, subject: str, values: Iterable[str]) -> dict[int, str]:
    query = select(SeriesName).where(col(SeriesName.run_id) == run_id, col(SeriesName.subject) == subject)
    rows, wanted = session.execute(query).scalars(), set(values)
    return {row.id: row.value for row in rows if row.id is not None and row.value in wanted}


def _recorded_range(session: Session, series: dict[int, str]) -> tuple[float, float] | None:
    """Times of the oldest and the newest row over all levels."""
    times: list[float] = []
    for level in LEVELS:
        table: Any = level.table
        oldest, newest = (  # each reads one entry of the key
            select(end).where(table.series_id == col(SeriesName.id)).scalar_subquery()
            for end in (func.min(table.at), func.max(table.at))
        )
        query = select(func.min(oldest), func.max(newest)).where(col(SeriesName.id).in_(series))
        times += [at for at in session.execute(query).one() if at is not None]
    return (min(times), max(times)) if times else None


def _numbers(
    session: Session, level: Level, series: dict[int, str], *, since: float, until: float
) -> Iterator[tuple[float, str, float]]:
    """Time, name and number of every row of a level in a time range."""
    table: Any = level.table
    highest = table.number if level is SECOND_LEVEL else table.high
    query = select(table.series_id, table.at, table.number, highest).where(
        table.series_id.in_(series), table.at >= since, table.at < until
    )
    for series_id, at, mean, high in session.execute(query):
        value = series[series_id]
        number = high if value in MAX_VALUES else mean
        if isinstance(number, int | float) and math.isfinite(number):
            yield at, value, number
