"""Events in the archive."""

import json
import sqlite3
from collections.abc import Iterable
from typing import Any

from astraflow.archive.conditions import Conditions, like_pattern
from astraflow.archive.connection import decoded_rows
from astraflow.contract.reports.queries import EventPage, EventQuery
from astraflow.contract.reports.report import Event


def event_columns(event: Event) -> tuple[int, float, str, str, str, int]:
    """Returns the row of an event."""
    return (event.ordinal, event.at, event.kind, event.subject, event.message, event.repeats)


def event_from_row(row: tuple[Any, ...]) -> Event:
    """Returns the event of a row. Raises: ValueError for columns of another type."""
    ordinal, at, kind, subject, message, repeats = row
    return Event(
        ordinal=int(ordinal),
        at=float(at),
        kind=str(kind),
        subject=str(subject),
        message=str(message),
        repeats=int(repeats),
    )


def events_from_rows(rows: Iterable[tuple[Any, ...]]) -> list[Event]:
    """Returns the events of the rows that are readable."""
    return list(decoded_rows(rows, event_from_row, table="events"))


def find_events(database: sqlite3.Connection, query: EventQuery) -> EventPage:
    """Returns one page of events, newest first."""
    conditions = Conditions()
    conditions.add("ordinal < ?", query.before)
    conditions.add("subject = ?", query.subject)
    conditions.add("kind in (select value from json_each(?))", json.dumps(query.kinds) if query.kinds else None)
    conditions.add("subject like ? escape '|' or message like ? escape '|'", like_pattern(query.text))
    select = f"select * from events where {conditions.text} order by ordinal desc limit ?"  # noqa: S608 (values are apart)
    rows = database.execute(select, (*conditions.values, query.limit + 1)).fetchall()
    return EventPage(events=tuple(events_from_rows(rows[: query.limit])), has_older=len(rows) > query.limit)
