"""Events in the archive."""

import json
import sqlite3
from typing import Any

from astraflow.archive.conditions import Conditions, like_pattern
from astraflow.contract.reports.queries import EventPage, EventQuery
from astraflow.contract.reports.report import Event


def event_columns(event: Event) -> tuple[int, float, str, str, str, int]:
    """Returns the row of an event."""
    return (event.ordinal, event.at, event.kind, event.subject, event.message, event.repeats)


def event_from_row(row: tuple[Any, ...]) -> Event:
    """Returns the event of a row."""
    ordinal, at, kind, subject, message, repeats = row
    return Event(ordinal=ordinal, at=at, kind=kind, subject=subject, message=message, repeats=repeats)


def find_events(database: sqlite3.Connection, query: EventQuery) -> EventPage:
    """Returns one page of events, newest first."""
    conditions = Conditions()
    conditions.add("ordinal < ?", query.before)
    conditions.add("subject = ?", query.subject)
    conditions.add("kind in (select value from json_each(?))", json.dumps(query.kinds) if query.kinds else None)
    conditions.add("subject like ? escape '|' or message like ? escape '|'", like_pattern(query.text))
    select = f"select * from events where {conditions.text} order by ordinal desc limit ?"  # noqa: S608 (values are apart)
    rows = database.execute(select, (*conditions.values, query.limit + 1)).fetchall()
    return EventPage(
        events=tuple(event_from_row(row) for row in rows[: query.limit]), has_older=len(rows) > query.limit
    )
