"""Leases: which node holds which task, and until when."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, takewhile

from astraflow.contract.ids import NodeId, TaskId, node_name


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A leased task, for a decision about its age."""

    task: TaskId
    node: NodeId | None
    """Holder; None while unconfirmed after a restart."""
    age_s: float
    """Time since its node leased it, which heartbeats do not change. Seconds."""
    requeues: int
    """Nodes that held it before. Count."""


@dataclass(frozen=True, slots=True)
class _HeldLease:
    """Lease that all tasks share which a node leased, or renewed, in one call."""

    node: NodeId | None
    owner: str
    """Owner of the lease, equal for all incarnations of a node; empty while unknown."""
    expires_at: float


class Leases:
    """Queued tasks and leased tasks. Callers pass the time, in seconds; it never goes back.

        queued ──lease, claim──► held ──complete──► forgotten
           ▲                      │ ▲
           │                      │ └──heartbeat renews
           └─expire, reclaim, return┘

    A returned task goes to the front of the queue, because it is the oldest work. Every operation takes time
    proportional to the tasks that it moves: leases have one length, so the leases renewed last expire last.
    """

    def __init__(
        self,
        lease_s: float,
        *,
        owner_of: Callable[[NodeId], str] = node_name,
        on_change: Callable[[NodeId, int], None] = lambda node, change: None,
    ) -> None:
        """owner_of: returns the owner of a node's leases, equal for all incarnations of one node only. on_change: gets
        each change of the number of tasks that a node holds."""
        self._lease_s = lease_s
        self._owner_of = owner_of
        self._on_change = on_change
        self._queue: OrderedDict[TaskId, None] = OrderedDict()
        self._held: OrderedDict[TaskId, _HeldLease] = OrderedDict()
        """Leased tasks in order of expiry."""
        self._leased_at: dict[TaskId, float] = {}
        """Times at which the holders of the leased tasks got them, oldest first."""
        self._claimed: dict[TaskId, float] = {}
        """The same, of tasks that their holders got again when they joined again."""
        self._tasks_by_node: dict[NodeId, dict[TaskId, None]] = {}
        self._previous_owners: dict[TaskId, dict[str, float]] = {}
        """Owners of earlier leases of a task that was requeued, with the times at which they got it."""

    @property
    def queued(self) -> int:
        """Number of tasks that wait for a node."""
        return len(self._queue)

    @property
    def held(self) -> int:
        """Number of tasks that nodes hold."""
        return len(self._held)

    def held_by(self, node: NodeId) -> int:
        """Returns the number of tasks that this node holds."""
        return len(self._tasks_by_node.get(node, ()))

    def holder(self, task: TaskId) -> NodeId | None:
        """Returns the holder of a task; None when it is queued, unconfirmed or unknown."""
        held = self._held.get(task)
        return held.node if held is not None else None

    def leased_at(self, task: TaskId) -> float | None:
        """Returns the time at which the holder of a task got it, None for a task that is not leased. Seconds."""
        return self._leased_at.get(task, self._claimed.get(task))

    def oldest_s(self, node: NodeId, *, now: float) -> float:
        """Returns the time for which a node has held its oldest task; 0 without any. Seconds."""
        oldest = next(iter(self._tasks_by_node.get(node, ())), None)
        leased_at = None if oldest is None else self.leased_at(oldest)
        return 0.0 if leased_at is None else now - leased_at

    def older_than(self, age_s: float, *, now: float) -> Iterator[HeldTask]:
        """Yields the tasks that were leased this long ago or longer, oldest first, after those that were claimed."""
        claimed = ((task, since) for task, since in self._claimed.items() if now - since >= age_s)
        leased = takewhile(lambda item: now - item[1] >= age_s, self._leased_at.items())
        for task, since in chain(claimed, leased):
            requeues = len(self._previous_owners.get(task, ()))
            yield HeldTask(task, self._held[task].node, now - since, requeues)

    def may_push(self, task: TaskId, owner: str) -> bool:
        """Returns whether this owner may push a result: it holds or held the task, or the holder is unknown."""
        held = self._held.get(task)
        if held is not None and held.owner in ("", owner):
            return True
        return owner in self._previous_owners.get(task, ())

    def add(self, tasks: Iterable[TaskId]) -> None:
        for task in tasks:
            self._queue[task] = None

    def add_unconfirmed(self, tasks: Iterable[TaskId], *, now: float, grace_s: float) -> None:
        """Holds tasks after a restart whose nodes may still run them; expires them unless renewed within `grace_s`.

        grace_s: at most the length of a lease. Call this before anything is leased.
        """
        self._held.update(dict.fromkeys(tasks, _HeldLease(node=None, owner="", expires_at=now + grace_s)))
        self._leased_at.update(dict.fromkeys(self._held, now))

    def lease(
        self,
        node: NodeId,
        capacity: int,
        *,
        now: float,
        suitable: Callable[[Iterable[TaskId]], Iterable[TaskId]] = iter,
    ) -> list[TaskId]:
        """Leases up to `capacity` suitable queued tasks to a node; the others keep their positions.

        suitable: yields those of the queued tasks that the node may lease. A capacity below 0 counts as 0: a node may
        hold more than its share by now.
        """
        tasks = list(islice(suitable(self._queue), max(0, capacity)))
        for task in tasks:
            del self._queue[task]
        self._leased_at.update(dict.fromkeys(tasks, now))
        self._hold(tasks, node, now)
        return tasks

    def claim(self, node: NodeId, tasks: Collection[TaskId], *, now: float, at_most: int | None = None) -> None:
        """Leases the tasks that a joining node reports as running, except those that another node holds or held.

        The age of a task that it held before goes on. at_most: number of queued tasks that it may get; None for all.
        """
        owner = self._owner_of(node)
        for task in islice((task for task in tasks if self._is_own(task, owner)), at_most):
            del self._queue[task]
            since = self._previous_owners.get(task, {}).pop(owner, None)
            if since is None:
                self._leased_at[task] = now
            else:
                self._claimed[task] = since
            self._hold([task], node, now)
        self.renew(node, tasks, now=now)

    def _is_own(self, task: TaskId, owner: str) -> bool:
        """Returns whether an owner may claim a task: a queued one that it held, or whose holders are unknown."""
        previous = self._previous_owners.get(task)
        return task in self._queue and (not previous or owner in previous)

    def renew(self, node: NodeId, tasks: Iterable[TaskId], *, now: float) -> None:
        """Renews the leases of tasks that a node runs. The node takes over unconfirmed tasks, but no task of another
        node."""
        held = [(task, self._held.get(task)) for task in tasks]
        self._hold([task for task, lease in held if lease is not None and lease.node in (None, node)], node, now)

    def complete(self, tasks: Sequence[TaskId]) -> int:
        """Removes tasks that have a result, held or queued. Returns how many were either."""
        for task in tasks if self._previous_owners else ():
            self._previous_owners.pop(task, None)
        others = self._release(tasks)
        return len(tasks) - sum(self._queue.pop(task, "") is not None for task in others)

    def requeue(self, task: TaskId) -> None:
        """Puts a task at the front of the queue, from any state."""
        held = self._held.get(task)
        since = self.leased_at(task)
        if held is not None and held.owner and since is not None:
            self._previous_owners.setdefault(task, {}).setdefault(held.owner, since)
        self._release([task])
        self._queue[task] = None
        self._queue.move_to_end(task, last=False)

    def expire(self, *, now: float) -> list[tuple[TaskId, NodeId | None]]:
        """Requeues the tasks of expired leases; returns them with their holders, earliest expiry first."""
        expired: list[tuple[TaskId, NodeId | None]] = []
        for task, held in self._held.items():
            if held.expires_at > now:
                break
            expired.append((task, held.node))
        self._requeue_all([task for task, _ in expired])
        return expired

    def reclaim(self, tasks: Sequence[TaskId]) -> None:
        """Requeues tasks in order, whose holders keep them too long and may still return a result."""
        self._requeue_all(list(tasks))

    def return_tasks_of(self, node: NodeId) -> list[TaskId]:
        """Requeues all tasks of a node at once and returns them."""
        return self._requeue_all(list(self._tasks_by_node.get(node, ())))

    def _requeue_all(self, tasks: list[TaskId]) -> list[TaskId]:
        """Requeues tasks in order: the first one is leased next."""
        for task in reversed(tasks):
            self.requeue(task)
        return tasks

    def _hold(self, tasks: Sequence[TaskId], node: NodeId, now: float) -> None:
        if tasks:
            lease = _HeldLease(node, self._owner_of(node), now + self._lease_s)
            for task in tasks:
                self._held[task] = lease
                self._held.move_to_end(task)
            owned = self._tasks_by_node.setdefault(node, {})
            owned_before = len(owned)
            owned.update(dict.fromkeys(tasks))
            if len(owned) > owned_before:
                self._on_change(node, len(owned) - owned_before)

    def _release(self, tasks: Iterable[TaskId]) -> list[TaskId]:
        """Ends the leases of tasks; returns the tasks that were not leased."""
        others: list[TaskId] = []
        released: Counter[NodeId] = Counter()
        for task in tasks:
            held = self._held.pop(task, None)
            if held is None:
                others.append(task)
                continue
            if self._leased_at.pop(task, None) is None:
                del self._claimed[task]
            if held.node is not None:
                del self._tasks_by_node[held.node][task]
                released[held.node] += 1
        for node, count in released.items():
            if not self._tasks_by_node[node]:
                del self._tasks_by_node[node]
            self._on_change(node, -count)
        return others
