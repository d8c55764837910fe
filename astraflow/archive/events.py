"""Events, as rows of the archive."""

import json
import sqlite3
from typing import Any

from astraflow.archive.conditions import Conditions, containing
from astraflow.contract.lookups import EventPage, EventQuery
from astraflow.contract.reports import Event


def event_columns(event: Event) -> tuple[int, float, str, str, str, int]:
    """A row."""
    return (event.ordinal, event.at, event.kind, event.subject, event.message, event.folded)


def event_of(row: tuple[Any, ...]) -> Event:
    """A row as an event."""
    ordinal, at, kind, subject, message, folded = row
    return Event(ordinal=ordinal, at=at, kind=kind, subject=subject, message=message, folded=folded)


def find_events(database: sqlite3.Connection, query: EventQuery) -> EventPage:
    """One page, newest first."""
    conditions = Conditions()
    conditions.add("ordinal < ?", query.before)
    conditions.add("subject = ?", query.subject)
    conditions.add("kind in (select value from json_each(?))", json.dumps(query.kinds) if query.kinds else None)
    conditions.add("subject like ? escape '|' or message like ? escape '|'", containing(query.text))
    select = f"select * from events where {conditions.text} order by ordinal desc limit ?"  # noqa: S608 (values are apart)
    rows = database.execute(select, (*conditions.values, query.limit + 1)).fetchall()
    return EventPage(events=tuple(event_of(row) for row in rows[: query.limit]), has_older=len(rows) > query.limit)
