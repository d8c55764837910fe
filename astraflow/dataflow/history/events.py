"""Events of a run, for people.

There are two kinds of events. An *action* is a decision with an actor and a reason: it goes into the journal, in the
same commit as its effect, and from there into the archive; after a crash, actions that the archive lost are restored.
An *observation* follows from the run itself: it goes into the archive only, and repeated observations are combined into
one event (see `repeats`).
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from astraflow.archive.events import COLUMNS, event_columns, events_from_rows, find_events
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import MAX_VALUE_CHARACTERS, Record, render
from astraflow.contract.reports.queries import EventPage, EventQuery
from astraflow.contract.reports.report import Event
from astraflow.contract.values import Json, Value
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.history.repeats import RepeatedEvent, RepeatFilter
from astraflow.dataflow.storage.journal import Journal
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.pb import control_plane_pb2 as pb

log = get_logger()

RECENT_EVENTS = 100
"""Latest events held in memory for reports. Count."""

MAX_JOURNALED_ACTIONS = 1000
"""Actions that stay in the journal: those that the archive may lose in a crash are among the latest of them. Count."""

_COLUMNS = ", ".join(COLUMNS)
_INSERT = f"insert or ignore into events ({_COLUMNS}) values ({', '.join('?' * len(COLUMNS))})"  # noqa: S608 (constant)


class Events:
    """Durable events with an increasing ordinal."""

    def __init__(self, journal: Journal, archive: Archive, clock: Clock, *, limit: int) -> None:
        """limit: number of events of the run that are retained."""
        self._journal = journal
        self._archive = archive
        self._clock = clock
        self._limit = limit
        self._repeats = RepeatFilter()
        self._ordinal = 0
        self._latest: deque[Event] = deque(maxlen=RECENT_EVENTS)
        self._restore()

    def record_action(
        self,
        kind: RecordKind,
        subject: str,
        *,
        actor: str = "",
        reason: str = "",
        cause: str = "",
        **values: Value,
    ) -> None:
        """Records an action, as durable as its effect. actor: empty for what the run itself decided."""
        self.add_action(Record(kind=kind, subject=subject, actor=actor, reason=reason, cause=cause, values=values))

    def add_action(self, record: Record) -> None:
        """Records an action; see `record_action`."""
        event = self._new_event(record)
        self._journal.put(
            "insert into actions values (?, ?)", event.ordinal, to_message(event, pb.Event).SerializeToString()
        )
        self._journal.put(
            "delete from actions where ordinal <= (select ordinal from actions order by ordinal desc limit 1 offset ?)",
            MAX_JOURNALED_ACTIONS,
        )
        self._store(event, must_keep=True)

    def add(
        self,
        kind: RecordKind,
        subject: str,
        *,
        source: str = "",
        actor: str = "",
        reason: str = "",
        cause: str = "",
        **values: Value,
    ) -> None:
        """Records an observation. values: those of the kind's template.

        source: identifies repeats, where that is not the subject: a node's name for its ids.
        """
        self.add_record(
            Record(kind=kind, subject=subject, actor=actor, reason=reason, cause=cause, values=values), source=source
        )

    def add_record(self, record: Record, *, source: str = "") -> None:
        """Records an observation; see `add`."""
        if self._repeats.is_reported(record, source or record.subject, now=self._clock.now()):
            self._store(self._new_event(record))

    def tick(self) -> None:
        """Records the repeats that are due."""
        for repeats in self._repeats.due(now=self._clock.now()):
            self._record_repeats(repeats)

    def stop(self) -> None:
        """Records all pending repeats before the service stops."""
        for repeats in self._repeats.all_pending():
            self._record_repeats(repeats)

    def latest(self, count: int) -> tuple[Event, ...]:
        """Returns the newest `count` events, newest last."""
        return tuple(self._latest)[-count:]

    async def page(self, query: EventQuery) -> EventPage:
        """Returns events of the whole run. Raises: DeadlineExceeded."""
        return await self._archive.read(lambda database: find_events(database, query))

    def state_dict(self) -> dict[str, Json]:
        """Returns the latest ordinal."""
        return {"ordinal": self._ordinal}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the latest ordinal of state or archive, whichever is higher."""
        self._ordinal = max(self._ordinal, state["ordinal"])

    def _restore(self) -> None:
        self._journal.load_state("events", self.load_state_dict)
        self._journal.register_state("events", self.state_dict)
        actions = self._journal.decoded(
            "select ordinal, body from actions",
            lambda row: from_message(pb.Event.FromString(row[1]), Event),
            what="action",
            delete="delete from actions where ordinal = ?",
        )
        rows = self._archive.rows(f"select {_COLUMNS} from events order by ordinal desc limit ?", (RECENT_EVENTS,))  # noqa: S608 (constant)
        events_by_ordinal = {event.ordinal: event for event in events_from_rows(rows)}
        for action in actions:
            self._archive.put(_INSERT, *event_columns(action), must_keep=True)
        oldest = min(events_by_ordinal, default=0)
        events_by_ordinal |= {action.ordinal: action for action in actions if action.ordinal >= oldest}
        self._latest.extend(events_by_ordinal[ordinal] for ordinal in sorted(events_by_ordinal))
        self._ordinal = max([self._ordinal, *events_by_ordinal])

    def _record_repeats(self, repeated: RepeatedEvent) -> None:
        self._store(self._new_event(repeated.latest, repeats=repeated.count - 1))

    def _new_event(self, record: Record, *, repeats: int = 0) -> Event:
        """Returns the next event; texts of its values are cut, since peers write some of them."""
        self._ordinal += 1
        values = {
            name: value[:MAX_VALUE_CHARACTERS] if isinstance(value, str) else value
            for name, value in record.values.items()
        }
        return Event(
            ordinal=self._ordinal,
            at=self._clock.wall(),
            kind=record.kind,
            subject=record.subject,
            actor=record.actor,
            reason=record.reason,
            cause=record.cause,
            severity=record.kind.severity,
            values=values,
            repeats=repeats,
        )

    def _store(self, event: Event, *, must_keep: bool = False) -> None:
        self._latest.append(event)
        columns = event_columns(event)
        size_bytes = sum(len(column) for column in columns if isinstance(column, str))
        self._archive.put(_INSERT, *columns, size_bytes=size_bytes, must_keep=must_keep)
        self._archive.put("delete from events where ordinal <= ?", event.ordinal - self._limit)
        log.info(event.kind.value, subject=event.subject, message=render(event), repeats=event.repeats)
