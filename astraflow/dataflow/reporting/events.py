"""The journal of events: what happened, for people.

Two kinds of events are kept in two ways. An *act* was somebody's decision and has an author and a reason: it goes into
the journal, in the same commit as what it changed, and from there into the archive; after a crash of any kind, whatever
the archive has lost is put back. A *happening* can be seen in the run itself: it goes into the archive alone, and where
much of it comes at once, one event stands for many (see `folding`).
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from astraflow.archive.events import event_columns, event_of, find_events
from astraflow.contract.lookups import EventPage, EventQuery
from astraflow.contract.reports import Event
from astraflow.contract.values import Json
from astraflow.dataflow.journal import Journal
from astraflow.dataflow.reporting.archive import Archive
from astraflow.dataflow.reporting.folding import Fold, Folding
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.wire.codec_control import decode_event, encode_event
from astraflow.wire.pb import control_plane_pb2 as pb

log = get_logger()

REMEMBERED = 100
"""Latest events in memory, for reports."""

KEPT_ACTS = 1000
"""Acts that stay in the journal: what the archive lost in a crash is among the latest of them."""

_INSERT = "insert or ignore into events values (?, ?, ?, ?, ?, ?)"


class Events:
    """Durable events with an ordinal that only grows."""

    def __init__(self, journal: Journal, archive: Archive, clock: Clock, *, kept: int) -> None:
        """kept: so many events of the run stay."""
        self._journal = journal
        self._archive = archive
        self._clock = clock
        self._kept = kept
        self._folding = Folding()
        self._ordinal = 0
        self._latest: deque[Event] = deque(maxlen=REMEMBERED)
        self._restore()

    def act(self, kind: str, subject: str, *, actor: str, reason: str, what: str = "") -> None:
        """Note what somebody decided; as durable as what it changes. what: where kind and subject leave it open."""
        by = f"by {actor}: {reason or 'no reason given'}"
        event = self._made(kind, subject, f"{what}, {by}" if what else by)
        self._journal.put("insert into acts values (?, ?)", event.ordinal, encode_event(event).SerializeToString())
        self._journal.put(
            "delete from acts where ordinal <= (select ordinal from acts order by ordinal desc limit 1 offset ?)",
            KEPT_ACTS,
        )
        self._keep(event, is_kept=True)

    def add(self, kind: str, subject: str, message: str, *, source: str = "") -> None:
        """Note what happened: `kind` a word, `subject` what it is about, `message` a sentence.

        source: what the same happens to again and again, where that is not the subject: a node's name for its ids.
        """
        if self._folding.tells(kind, source or subject, message, now=self._clock.now()):
            self._keep(self._made(kind, subject, message))

    def tick(self) -> None:
        """Tell what was folded and is due."""
        for fold in self._folding.due(now=self._clock.now()):
            self._tell(fold)

    def stop(self) -> None:
        """Tell what was folded: nothing more will come."""
        for fold in self._folding.all_due():
            self._tell(fold)

    def latest(self, count: int) -> tuple[Event, ...]:
        """The newest `count`, newest last."""
        return tuple(self._latest)[-count:]

    async def page(self, query: EventQuery) -> EventPage:
        """Events of the whole run. Raises: DeadlineExceeded."""
        return await self._archive.read(lambda database: find_events(database, query))

    def state_dict(self) -> dict[str, Json]:
        """How far it is."""
        return {"ordinal": self._ordinal}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, or from what the archive has if that is farther."""
        self._ordinal = max(self._ordinal, state["ordinal"])

    def _restore(self) -> None:
        saved = self._journal.saved_state("events")
        if saved is not None:
            self.load_state_dict(saved)
        self._journal.keep_state("events", self.state_dict)
        acts = [decode_event(pb.Event.FromString(body)) for (body,) in self._journal.rows("select body from acts")]
        rows = self._archive.rows("select * from events order by ordinal desc limit ?", (REMEMBERED,))
        known = {event.ordinal: event for event in (event_of(row) for row in rows)}
        for act in acts:
            self._archive.put(_INSERT, *event_columns(act), is_kept=True)
        oldest = min(known, default=0)
        known |= {act.ordinal: act for act in acts if act.ordinal >= oldest}
        self._latest.extend(known[ordinal] for ordinal in sorted(known))
        self._ordinal = max([self._ordinal, *known])

    def _tell(self, fold: Fold) -> None:
        message = f"{fold.count} more within a minute; the last: {fold.message}"
        self._keep(self._made(fold.kind, fold.subject, message, folded=fold.count - 1))

    def _made(self, kind: str, subject: str, message: str, *, folded: int = 0) -> Event:
        self._ordinal += 1
        at = self._clock.wall()
        return Event(ordinal=self._ordinal, at=at, kind=kind, subject=subject, message=message, folded=folded)

    def _keep(self, event: Event, *, is_kept: bool = False) -> None:
        self._latest.append(event)
        self._archive.put(_INSERT, *event_columns(event), size_bytes=len(event.message), is_kept=is_kept)
        self._archive.put("delete from events where ordinal <= ?", event.ordinal - self._kept)
        log.info(event.kind, subject=event.subject, message=event.message)
