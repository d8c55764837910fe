"""Event lists: important events one by one, routine events of a kind as one line with a count."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from astraflow.contract.record_kinds import RecordKind, Topic
from astraflow.contract.records import render, render_summary
from astraflow.contract.reports.report import Event, Report
from web.components.downloads import Sheet
from web.state.annotations import capitalized, event_text, shared_cause

COLUMNS = ("ordinal", "unix_s", "kind", "subject", "message", "repeats")

KINDS = {kind.value: kind for kind in sorted(RecordKind, key=lambda kind: kind.value) if not kind.is_decision}
"""Kinds of events by name."""

EVENT_TOPICS: Mapping[str, tuple[str, tuple[RecordKind, ...]]] = {
    topic.name.lower(): (topic.value, tuple(kind for kind in RecordKind if topic in kind.topics)) for topic in Topic
}
"""Topics that a list can be filtered by: label and kinds."""

SAME_TICK_S = 10.0
"""Length of one tick of the sizing rule, which covers every pool. Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One line: an event, or several of one kind."""

    title: str
    at: float
    """Time of the newest event, Unix seconds."""
    href: str
    """Link to the event, or to the list of the events that the line stands for."""
    parts: tuple[tuple[str, str], ...]
    """Subject and message of each event."""
    cause: str
    """Cause that all events of the line share; empty where the messages name none."""
    count: int


def event_rows(events: Sequence[Event]) -> tuple[EventRow, ...]:
    """Returns lines for a list, newest first. Routine events of a kind between two important events share a line."""
    rows: list[EventRow] = []
    routine: dict[RecordKind, list[Event]] = {}
    alike: list[Event] = []
    for event in events:
        if event.kind.routine:
            rows += _merged_rows(alike)
            alike = []
            routine.setdefault(event.kind, []).append(event)
            continue
        rows += [_counted_row(of_kind) for of_kind in routine.values()]
        routine = {}
        if alike and not _can_merge(alike[0], event):
            rows += _merged_rows(alike)
            alike = []
        alike.append(event)
    return (*rows, *_merged_rows(alike), *(_counted_row(of_kind) for of_kind in routine.values()))


def single_event_rows(events: Iterable[Event]) -> tuple[EventRow, ...]:
    """Returns a line for each event."""
    return tuple(_event_row(event) for event in events)


def event_sheet(events: Sequence[Event]) -> Sheet:
    """Returns the events as a sheet for download, one row per event."""
    rows = [
        (event.ordinal, event.at, event.kind.value, event.subject, render(event), event.repeats) for event in events
    ]
    return Sheet(name="events", columns=COLUMNS, rows=rows)


def _event_row(event: Event) -> EventRow:
    return EventRow(
        title=event.kind.label,
        at=event.at,
        href=f"/events/{event.ordinal}",
        parts=((event.subject, event_text(event)),),
        cause="",
        count=1,
    )


def _counted_row(events: Sequence[Event]) -> EventRow:
    """Returns one line for events of one kind: their number and the newest of them."""
    newest, count = events[0], sum(1 + event.repeats for event in events)
    if count == 1:
        return _event_row(newest)
    query = urlencode({"kind": newest.kind.value, "before": newest.ordinal + 1})
    return EventRow(
        title=f"{count} {newest.kind.routine or newest.kind.plural}",
        at=newest.at,
        href=f"/events?{query}",
        parts=((newest.subject, capitalized(render(newest))),),
        cause="",
        count=count,
    )


def _merged_rows(events: Sequence[Event]) -> list[EventRow]:
    """Merges neighbours of one tick: a burst becomes a count, events with one cause become one line with that cause."""
    if len(events) < 2:
        return [_event_row(event) for event in events]
    newest = events[0]
    if newest.kind.plural:
        return [_counted_row(events)]
    return [
        EventRow(
            title=newest.kind.label,
            at=newest.at,
            href=f"/events/{newest.ordinal}",
            parts=tuple((event.subject, capitalized(render_summary(event))) for event in events),
            cause=shared_cause(newest),
            count=len(events),
        )
    ]


def _can_merge(first: Event, other: Event) -> bool:
    if first.kind != other.kind or abs(first.at - other.at) > SAME_TICK_S:
        return False
    if first.kind.plural:
        return True
    cause = shared_cause(first)
    return bool(cause) and cause == shared_cause(other)


def latest_events(report: Report) -> tuple[EventRow, ...]:
    """Returns lines for the newest events, newest first."""
    return event_rows(sorted(report.events, key=lambda event: -event.ordinal))
