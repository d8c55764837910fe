"""Combines repeated events, and many events of one kind at once, into one event."""

from collections import Counter
from dataclasses import dataclass, replace

from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record

WINDOW_S = 60.0
"""Repeats within this time are combined. Seconds."""

MAX_EVENTS_PER_WINDOW = 20
"""Events of one kind, about different subjects, that are reported individually within the window. Count."""

SEVERAL_SUBJECTS = "many"
"""Subject of an event that stands for several subjects."""


@dataclass(slots=True)
class RepeatedEvent:
    """Repeats that were not reported individually."""

    latest: Record
    """Latest repeat, with the subject of all repeats."""
    until: float
    count: int = 0


class RepeatFilter:
    """Decides which events are reported at once. Callers pass the time, in monotonic seconds.

    The first event of a kind and subject is reported; those that follow within the window are counted, and `due`
    returns them as one when it ends. The same holds for events beyond `MAX_EVENTS_PER_WINDOW` of a kind.

    >>> repeats = RepeatFilter()
    >>> lost = Record(kind=RecordKind.NODE_LOST, subject="node-1", values={"silent_s": 9})
    >>> [repeats.is_reported(lost, "node-1", now=second) for second in (0.0, 5.0, 9.0)]
    [True, False, False]
    >>> [(repeated.latest.subject, repeated.count) for repeated in repeats.due(now=60.0)]
    [('node-1', 2)]
    >>> repeats.is_reported(lost, "node-1", now=61.0)
    True
    """

    def __init__(self) -> None:
        self._repeats: dict[tuple[RecordKind, str], RepeatedEvent] = {}
        self._reported: Counter[RecordKind] = Counter()
        """Events reported of each kind, within `_reported_until`."""
        self._reported_until: dict[RecordKind, float] = {}

    def is_reported(self, record: Record, source: str, *, now: float) -> bool:
        """Returns whether to report this event individually; otherwise counts it. source: identifies its repeats."""
        kind = record.kind
        if now >= self._reported_until.get(kind, 0.0):
            self._reported[kind], self._reported_until[kind] = 0, now + WINDOW_S
        repeated = self._repeats.get((kind, source))
        if repeated is not None and now < repeated.until:
            _count(repeated, record, source)
            return False
        if self._reported[kind] >= MAX_EVENTS_PER_WINDOW:
            ended_at = self._reported_until[kind]
            several = self._repeats.setdefault((kind, SEVERAL_SUBJECTS), RepeatedEvent(record, ended_at))
            _count(several, record, SEVERAL_SUBJECTS)
            return False
        self._reported[kind] += 1
        self._repeats.setdefault((kind, source), RepeatedEvent(record, now + WINDOW_S))
        return True

    def due(self, *, now: float) -> list[RepeatedEvent]:
        """Removes and returns the repeats whose window is over."""
        ended = [key for key, repeated in self._repeats.items() if now >= repeated.until]
        return [repeated for repeated in (self._repeats.pop(key) for key in ended) if repeated.count]

    def all_pending(self) -> list[RepeatedEvent]:
        """Removes and returns all repeats, before their windows are over."""
        return self.due(now=float("inf"))


def _count(repeated: RepeatedEvent, record: Record, subject: str) -> None:
    repeated.count += 1
    repeated.latest = replace(record, subject=subject)
