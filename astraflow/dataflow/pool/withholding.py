"""Withholds tasks from nodes whose results break limits again and again, so that they use up no attempts of tasks that
other nodes can complete."""

from dataclasses import dataclass

MAX_IN_A_ROW = 4
"""Refused results in a row, less the accepted ones since, from which a node gets no tasks for a while. Count."""

FIRST_PAUSE_S = 1.0
"""First pause; each further one is twice as long. Seconds."""

MAX_PAUSE_S = 16.0
"""Longest pause. Seconds. Shorter than the pause after which total failure is counted anew (`reporting.failures`)."""

_MAX_OWNERS = 1000


@dataclass(slots=True)
class _Record:
    refused: int = 0
    """Refused results, less the accepted ones since; at most `MAX_IN_A_ROW`."""
    pause_s: float = FIRST_PAUSE_S
    paused_until: float = 0.0


class LeaseWithholding:
    """Refused and accepted results by owner of leases (`NodeRegistry.owner`). Callers pass the time, in seconds.

    any number of tasks ──MAX_IN_A_ROW refused──► none, for a pause ──► one at a time ──accepted──► any number
                                                     ▲                       │
                                                     └────────refused────────┘ the pause doubles
    """

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        """Owners with refused results that accepted ones have not made up for."""

    def note(self, owner: str, *, refused: int, accepted: int, now: float) -> float:
        """Counts results of a node; returns the length of the pause that begins now, 0 if none does. Seconds."""
        if not refused and owner not in self._records:
            return 0.0
        record = self._records.setdefault(owner, _Record())
        record.refused = min(MAX_IN_A_ROW, max(0, record.refused - accepted) + refused)
        if not record.refused:
            del self._records[owner]
        if record.refused < MAX_IN_A_ROW or not refused or now < record.paused_until:
            return 0.0
        pause_s, record.pause_s = record.pause_s, min(2 * record.pause_s, MAX_PAUSE_S)
        record.paused_until = now + pause_s
        self._forget_old(now)
        return pause_s

    def most_tasks(self, owner: str, *, held: int, now: float) -> int | None:
        """Returns how many further tasks a node may lease; None for any number. held: tasks that it has."""
        record = self._records.get(owner)
        if record is None or record.refused < MAX_IN_A_ROW:
            return None
        return 0 if now < record.paused_until else max(0, 1 - held)

    def _forget_old(self, now: float) -> None:
        if len(self._records) > _MAX_OWNERS:
            old = [owner for owner, record in self._records.items() if record.paused_until + MAX_PAUSE_S < now]
            for owner in old:
                del self._records[owner]
