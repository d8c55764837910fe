"""The journal of events: what happened, for people."""

from collections import deque

from astraflow.contract.reports import Event
from astraflow.dataflow.journal import Journal
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.wire.codec_control import decode_event, encode_event
from astraflow.wire.pb import control_plane_pb2 as pb

log = get_logger()

KEPT = 500


class Events:
    """The latest events, durable, with an ordinal that only grows."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        rows = journal.rows("select body from events order by ordinal desc limit ?", (KEPT,))
        recovered = [decode_event(pb.Event.FromString(body)) for (body,) in reversed(rows)]
        self._events: deque[Event] = deque(recovered, maxlen=KEPT)

    def add(self, kind: str, subject: str, message: str) -> None:
        """Note an event: `kind` a word, `subject` what it is about, `message` a sentence."""
        ordinal = self._events[-1].ordinal + 1 if self._events else 1
        event = Event(ordinal=ordinal, at=self._clock.wall(), kind=kind, subject=subject, message=message)
        self._events.append(event)
        self._journal.put("insert into events values (?, ?)", ordinal, encode_event(event).SerializeToString())
        self._journal.put("delete from events where ordinal <= ?", ordinal - KEPT)
        log.info(kind, subject=subject, message=message)

    def latest(self, count: int) -> tuple[Event, ...]:
        """The newest `count`, newest last."""
        return tuple(self._events)[-count:]
