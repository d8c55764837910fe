"""Event lists: important events one by one, routine events of a kind as one line with a count."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from astraflow.contract.reports.event_kinds import EVENT_KINDS, EventTopic
from astraflow.contract.reports.report import Event, Report
from web.components.downloads import Sheet
from web.state.sentences import event_sentence, latest_sentence, split_cause

COLUMNS = ("ordinal", "unix_s", "kind", "subject", "message", "repeats")

ROUTINE_KINDS = {kind.name: kind.plural for kind in EVENT_KINDS if kind.is_routine}
"""Kinds of routine events in a healthy run, and the plural label of each."""

GROUPED_KINDS = {kind.name: kind.plural for kind in EVENT_KINDS if kind.plural and not kind.is_routine}
"""Kinds of important events that arrive in bursts; those of one tick share a line."""

KIND_LABELS = {kind.name: kind.label for kind in EVENT_KINDS if kind.label}
"""Labels of single events; other kinds are shown by their own name."""

EVENT_TOPICS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    topic.name.lower(): (topic.value, tuple(kind.name for kind in EVENT_KINDS if topic in kind.topics))
    for topic in EventTopic
}
"""Topics that a list can be filtered by: label and kinds."""

KINDS = tuple(sorted(kind.name for kind in EVENT_KINDS))

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
    routine: dict[str, list[Event]] = {}
    alike: list[Event] = []
    for event in events:
        if event.kind in ROUTINE_KINDS:
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
    rows = [(event.ordinal, event.at, event.kind, event.subject, event.message, event.repeats) for event in events]
    return Sheet(name="events", columns=COLUMNS, rows=rows)


def kind_label(kind: str) -> str:
    """Returns the label of one event of a kind."""
    return KIND_LABELS.get(kind, kind.replace("_", " ").capitalize())


def _event_row(event: Event) -> EventRow:
    return EventRow(
        title=kind_label(event.kind),
        at=event.at,
        href=f"/events/{event.ordinal}",
        parts=((event.subject, event_sentence(event)),),
        cause="",
        count=1,
    )


def _counted_row(events: Sequence[Event]) -> EventRow:
    """Returns one line for events of one kind: their number and the newest of them."""
    newest, count = events[0], sum(1 + event.repeats for event in events)
    if count == 1:
        return _event_row(newest)
    query = urlencode({"kind": newest.kind, "before": newest.ordinal + 1})
    return EventRow(
        title=f"{count} {(ROUTINE_KINDS | GROUPED_KINDS)[newest.kind]}",
        at=newest.at,
        href=f"/events?{query}",
        parts=((newest.subject, latest_sentence(newest)),),
        cause="",
        count=count,
    )


def _merged_rows(events: Sequence[Event]) -> list[EventRow]:
    """Merges neighbours of one tick: a burst becomes a count, events with one cause become one line with that cause."""
    if len(events) < 2:
        return [_event_row(event) for event in events]
    newest = events[0]
    if newest.kind in GROUPED_KINDS:
        return [_counted_row(events)]
    return [
        EventRow(
            title=kind_label(newest.kind),
            at=newest.at,
            href=f"/events/{newest.ordinal}",
            parts=tuple((event.subject, split_cause(event_sentence(event))[0]) for event in events),
            cause=split_cause(event_sentence(newest))[1],
            count=len(events),
        )
    ]


def _can_merge(first: Event, other: Event) -> bool:
    if first.kind != other.kind or abs(first.at - other.at) > SAME_TICK_S:
        return False
    if first.kind in GROUPED_KINDS:
        return True
    cause = split_cause(event_sentence(first))[1]
    return bool(cause) and cause == split_cause(event_sentence(other))[1]


def latest_events(report: Report) -> tuple[EventRow, ...]:
    """Returns lines for the newest events, newest first."""
    return event_rows(sorted(report.events, key=lambda event: -event.ordinal))
