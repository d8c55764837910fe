"""Combines repeated events, and many events of one kind at once, into one event."""

from collections import Counter
from dataclasses import dataclass

WINDOW_S = 60.0
"""Repeats within this time are combined. Seconds."""

MAX_EVENTS_PER_WINDOW = 20
"""Events of one kind, about different subjects, that are reported individually within the window. Count."""

SEVERAL_SUBJECTS = "many"
"""Subject of an event that stands for several subjects."""


@dataclass(slots=True)
class RepeatedEvent:
    """Repeats that were not reported individually."""

    kind: str
    subject: str
    until: float
    count: int = 0
    message: str = ""
    """Message of the latest repeat."""


class RepeatFilter:
    """Decides which events are reported at once. Callers pass the time, in monotonic seconds.

    The first event of a kind and subject is reported; those that follow within the window are counted, and `due`
    returns them as one when it ends. The same holds for events beyond `MAX_EVENTS_PER_WINDOW` of a kind.

    >>> repeats = RepeatFilter()
    >>> [repeats.is_reported("node_lost", "node-1", "no heartbeat", now=second) for second in (0.0, 5.0, 9.0)]
    [True, False, False]
    >>> [(repeated.subject, repeated.count) for repeated in repeats.due(now=60.0)]
    [('node-1', 2)]
    >>> repeats.is_reported("node_lost", "node-1", "no heartbeat", now=61.0)
    True
    """

    def __init__(self) -> None:
        self._repeats: dict[tuple[str, str], RepeatedEvent] = {}
        self._reported: Counter[str] = Counter()
        """Events reported of each kind, within `_reported_until`."""
        self._reported_until: dict[str, float] = {}

    def is_reported(self, kind: str, subject: str, message: str, *, now: float) -> bool:
        """Returns whether to report this event individually; otherwise counts it."""
        if now >= self._reported_until.get(kind, 0.0):
            self._reported[kind], self._reported_until[kind] = 0, now + WINDOW_S
        repeated = self._repeats.get((kind, subject))
        if repeated is not None and now < repeated.until:
            self._count(repeated, message)
            return False
        if self._reported[kind] >= MAX_EVENTS_PER_WINDOW:
            self._count(
                self._repeats.setdefault(
                    (kind, SEVERAL_SUBJECTS), RepeatedEvent(kind, SEVERAL_SUBJECTS, self._reported_until[kind])
                ),
                message,
            )
            return False
        self._reported[kind] += 1
        self._repeats.setdefault((kind, subject), RepeatedEvent(kind, subject, now + WINDOW_S))
        return True

    def due(self, *, now: float) -> list[RepeatedEvent]:
        """Removes and returns the repeats whose window is over."""
        ended = [key for key, repeated in self._repeats.items() if now >= repeated.until]
        return [repeated for repeated in (self._repeats.pop(key) for key in ended) if repeated.count]

    def all_pending(self) -> list[RepeatedEvent]:
        """Removes and returns all repeats, before their windows are over."""
        return self.due(now=float("inf"))

    def _count(self, repeated: RepeatedEvent, message: str) -> None:
        repeated.count += 1
        repeated.message = message
