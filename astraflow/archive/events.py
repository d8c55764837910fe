"""Events in the archive."""

import json
import sqlite3
from collections.abc import Iterable
from typing import Any

from astraflow.archive.connection import Conditions, decoded_rows, like_pattern
from astraflow.contract.record_kinds import RecordKind, Severity
from astraflow.contract.records import render
from astraflow.contract.reports.queries import EventPage, EventQuery
from astraflow.contract.reports.report import Event

COLUMNS = ("ordinal", "at", "kind", "subject", "actor", "reason", "cause", "severity", "figures", "repeats")
"""Columns of the table, in the order of `event_columns`."""


_OF_SCHEMA_5 = (
    "(select *, '' as actor, '' as reason, '' as cause, 'info' as severity, json_object('text', message) as figures "
    "from events)"
)
"""Events of a run that ended under an earlier release: its archive is read only."""


def event_columns(event: Event) -> tuple[int | float | str, ...]:
    """Returns the row of an event."""
    return (
        event.ordinal,
        event.at,
        event.kind.value,
        event.subject,
        event.actor,
        event.reason,
        event.cause,
        event.severity.value,
        json.dumps(dict(event.values)),
        event.repeats,
    )


def event_from_row(row: tuple[Any, ...]) -> Event:
    """Returns the event of a row. Raises: ValueError for columns of another type."""
    ordinal, at, kind, subject, actor, reason, cause, severity, values, repeats = row
    return Event(
        ordinal=int(ordinal),
        at=float(at),
        kind=RecordKind(kind),
        subject=str(subject),
        actor=str(actor),
        reason=str(reason),
        cause=str(cause),
        severity=Severity(severity),
        values=dict(json.loads(values)),
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
    kinds = json.dumps([kind.value for kind in query.kinds]) if query.kinds else None
    conditions.add("kind in (select value from json_each(?))", kinds)
    if query.text:
        database.create_function("sentence", len(COLUMNS), _sentence, deterministic=True)
        sentence = f"sentence({', '.join(COLUMNS)})"
        conditions.add(f"subject like ? escape '|' or {sentence} like ? escape '|'", like_pattern(query.text))
    has_messages = any(column[1] == "message" for column in database.execute("pragma table_info(events)"))
    table = _OF_SCHEMA_5 if has_messages else "events"
    select = f"select {', '.join(COLUMNS)} from {table} where {conditions.text} order by ordinal desc limit ?"  # noqa: S608 (values are apart)
    rows = database.execute(select, (*conditions.values, query.limit + 1)).fetchall()
    return EventPage(events=tuple(events_from_rows(rows[: query.limit])), has_older=len(rows) > query.limit)


def _sentence(*row: Any) -> str:
    """Returns the sentence of a row; empty for a row that cannot be read."""
    return "".join(render(event) for event in events_from_rows([row]))
