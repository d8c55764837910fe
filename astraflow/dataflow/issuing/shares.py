"""Shares: how many tasks a node may hold while others want work, measured by what it returned.

A holder is a node, a join token or a pool; a task of a node counts for all three. Each holder has a limit, which
follows its results as a congestion window follows acknowledgements:

    FIRST_TASKS ──each result: + 1 while at least half is used──► at most twice what it really runs
         │ ▲
         │ └──results──┐
         └──each task kept too long: - 4──► PROBES, with a growing wait before the next lease

The limit binds only beside a rival that has returned results: a node that is alone, and all nodes before the first
result of a run, hold what they want. Time without tasks changes nothing, so a slow trainer makes no node unproven.

Results that break limits use up attempts of tasks, also of a node that is alone. So they count for the node itself,
whatever its limit:

    its share ──MAX_REFUSED refused──► none, for a pause ──► one at a time ──accepted──► its share
                                          ▲                       │
                                          └────────refused────────┘ the pause doubles
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from astraflow.contract.ids import NodeId

FIRST_TASKS = 32
"""Tasks that a holder without a result may hold; a node's own limit begins with as many. Count."""

PROBES = 4
"""Lowest limit. Count."""

LOSS = 4
"""Decrease of the limit for each task that was kept too long: the limit shrinks when a fifth of them is. Count."""

MAX_WAIT_S = 60.0
"""Longest wait of a holder at its lowest limit before its next lease; it doubles from a second. Seconds."""

MAX_REFUSED = 4
"""Refused results, less the accepted ones since, from which a node gets no tasks for a while. Count."""

MAX_PAUSE_S = 16.0
"""Longest of these pauses; they double from a second. Shorter than the pause after which total failure is counted anew
(`reporting.failures`). Seconds."""

RIVAL_S = 10.0
"""A holder counts as a rival for this long after its last call. Seconds."""

FRUITLESS = 64
"""Tasks that failed or were handed back in a row, after which each further one is a loss. Count."""

MAX_REMEMBERED = 16_384
"""Holders remembered; the least recently seen are forgotten first. Count."""


@dataclass(slots=True, eq=False)
class _Holder:
    """State of one node, token or pool."""

    key: str
    limit: int = FIRST_TASKS
    held: int = 0
    """Tasks leased to it now. Count."""
    results: int = 0
    """Results that counted. Count."""
    fruitless: int = 0
    """Tasks that failed or were handed back since the last result. Count."""
    wait_s: float = 0.0
    """Latest wait at the lowest limit. Seconds."""
    blocked_until: float = 0.0
    refused: int = 0
    """Refused results, less the accepted ones since; at most `MAX_REFUSED`."""
    pause_s: float = 0.0
    """Latest pause after refused results. Seconds."""
    paused_until: float = 0.0
    seen_at: float = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Tasks that a node may lease now."""

    tasks: int | None
    """Count; None for no limit."""
    may_use_slack: bool = True
    """Whether it may also take groups beyond the next batch, which no trainer waits for."""
    is_blocked: bool = False
    """Whether it gets none for a time, whatever it holds."""


_BLOCKED = Room(tasks=0, may_use_slack=False, is_blocked=True)


@dataclass(slots=True)
class _Level:
    """Holders of one kind, the latest seen last."""

    holders: OrderedDict[str, _Holder] = field(default_factory=OrderedDict)
    proven: OrderedDict[str, _Holder] = field(default_factory=OrderedDict)
    """Holders with results, the latest seen last."""

    def see(self, holder: _Holder, *, now: float) -> None:
        """Notes a call."""
        holder.seen_at = now
        for holders in (self.holders, self.proven) if holder.results else (self.holders,):
            holders[holder.key] = holder
            holders.move_to_end(holder.key)
            while len(holders) > MAX_REMEMBERED:
                holders.popitem(last=False)

    def has_rival(self, holder: _Holder, *, now: float) -> bool:
        """Returns whether another holder with results was seen lately."""
        return _is_seen_beside(holder, self.proven, now=now)

    def is_alone(self, holder: _Holder, *, now: float) -> bool:
        """Returns whether no other holder was seen lately."""
        return not _is_seen_beside(holder, self.holders, now=now)


def _is_seen_beside(holder: _Holder, holders: OrderedDict[str, _Holder], *, now: float) -> bool:
    latest = next((other for other in reversed(holders.values()) if other is not holder), None)
    return latest is not None and now - latest.seen_at <= RIVAL_S


class Shares:
    """Limits of all holders. Callers pass the time, in seconds; it never goes back."""

    def __init__(self, keys_of: Callable[[NodeId], tuple[str, str, str]]) -> None:
        """keys_of: returns the names of a node's holders: its own over all incarnations, its token's, its pool's."""
        self._keys_of = keys_of
        self._levels = (_Level(), _Level(), _Level())
        self._holders_of: dict[NodeId, tuple[_Holder, ...]] = {}

    def see(self, node: NodeId, *, now: float) -> None:
        """Notes a call of a node."""
        for level, holder in zip(self._levels, self._holders(node), strict=True):
            level.see(holder, now=now)

    def room(self, node: NodeId, *, now: float) -> Room:
        """Returns how many more tasks a node may lease."""
        own = self._holders(node)[0]
        is_on_probation = own.refused >= MAX_REFUSED
        if is_on_probation and now < own.paused_until:
            return _BLOCKED
        tasks = max(0, 1 - own.held) if is_on_probation else None
        for level, holder in zip(self._levels, self._holders(node), strict=True):
            if holder.limit < FIRST_TASKS:
                if level.is_alone(holder, now=now):
                    continue
                is_on_probation = True
                if now < holder.blocked_until:
                    return _BLOCKED
            elif not level.has_rival(holder, now=now):
                continue
            free = max(0, holder.limit - holder.held)
            tasks = free if tasks is None else min(tasks, free)
        return Room(tasks=tasks, may_use_slack=not is_on_probation)

    def is_over(self, node: NodeId) -> bool:
        """Returns whether a node, or its token or pool, holds more than its limit."""
        return any(holder.held > holder.limit for holder in self._holders(node))

    def is_on_probation(self, node: NodeId) -> bool:
        """Returns whether a node gets only a few tasks, because it kept or returned others without a result."""
        return any(holder.limit < FIRST_TASKS for holder in self._holders(node))

    def results_of(self, node: NodeId) -> int:
        """Returns the number of results of a node that counted, over all its incarnations."""
        return self._holders(node)[0].results

    def hold(self, node: NodeId, change: int) -> None:
        """Counts tasks that a node holds from now on, or no longer holds if `change` is negative."""
        for holder in self._holders(node):
            holder.held += change

    def succeed(self, node: NodeId, tasks: int) -> None:
        for level, holder in zip(self._levels, self._holders(node), strict=True):
            if not holder.results:
                level.proven[holder.key] = holder
            holder.results += tasks
            holder.fruitless = 0
            holder.wait_s /= 2
            if holder.limit < FIRST_TASKS or 2 * (holder.held + tasks) >= holder.limit:
                holder.limit += tasks

    def lose(self, node: NodeId, tasks: int, *, now: float) -> None:
        """Counts tasks that a node kept too long."""
        for holder in self._holders(node):
            holder.limit = max(PROBES, holder.limit - LOSS * tasks)
            if holder.limit == PROBES:
                holder.wait_s = min(max(1.0, 2 * holder.wait_s), MAX_WAIT_S)
                holder.blocked_until = now + holder.wait_s

    def fail(self, node: NodeId, tasks: int, *, now: float) -> None:
        """Counts tasks that failed or were handed back: losses when no result comes between, but results of others."""
        own = self._holders(node)[0]
        own.fruitless += tasks
        if own.fruitless >= FRUITLESS and self._levels[0].has_rival(own, now=now):
            self.lose(node, tasks, now=now)

    def judge(self, node: NodeId, *, refused: int, accepted: int, now: float) -> float:
        """Counts results of a node; returns the length of the pause that begins now, 0 if none does. Seconds."""
        own = self._holders(node)[0]
        own.refused = min(MAX_REFUSED, max(0, own.refused - accepted) + refused)
        if not own.refused:
            own.pause_s = own.paused_until = 0.0
        if own.refused < MAX_REFUSED or not refused or now < own.paused_until:
            return 0.0
        own.pause_s = min(max(1.0, 2 * own.pause_s), MAX_PAUSE_S)
        own.paused_until = now + own.pause_s
        return own.pause_s

    def forget(self, node: NodeId) -> None:
        """Forgets the id of a node that ended and holds nothing; its holders are remembered."""
        self._holders_of.pop(node, None)

    def _holders(self, node: NodeId) -> tuple[_Holder, ...]:
        holders = self._holders_of.get(node)
        if holders is None:
            keys = zip(self._levels, self._keys_of(node), strict=True)
            holders = tuple(level.holders.setdefault(key, _Holder(key)) for level, key in keys)
            self._holders_of[node] = holders
        return holders
