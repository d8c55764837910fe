"""Leases: which node holds which task, and until when."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from astraflow.contract.ids import NodeId, TaskId, node_name


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
           └─expire, return───────┘

    A returned task goes to the front of the queue, because it is the oldest work. Every operation takes time
    proportional to the tasks that it moves: leases have one length, so the leases renewed last expire last.
    """

    def __init__(self, lease_s: float, *, owner_of: Callable[[NodeId], str] = node_name) -> None:
        """owner_of: returns the owner of a node's leases, equal for all incarnations of one node only."""
        self._lease_s = lease_s
        self._owner_of = owner_of
        self._queue: OrderedDict[TaskId, None] = OrderedDict()
        self._held: OrderedDict[TaskId, _HeldLease] = OrderedDict()
        """Leased tasks in order of expiry."""
        self._tasks_by_node: dict[NodeId, dict[TaskId, None]] = {}
        self._previous_owners: dict[TaskId, set[str]] = {}
        """Owners of earlier leases of a task that was requeued."""

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

    def may_push(self, task: TaskId, owner: str) -> bool:
        """Returns whether this owner may push a result: it holds or held the task, or the holder is unknown."""
        held = self._held.get(task)
        if held is not None and held.owner in ("", owner):
            return True
        return owner in self._previous_owners.get(task, ())

    def add(self, tasks: Iterable[TaskId]) -> None:
        """Queues new tasks."""
        for task in tasks:
            self._queue[task] = None

    def add_unconfirmed(self, tasks: Iterable[TaskId], *, now: float, grace_s: float) -> None:
        """Holds tasks after a restart whose nodes may still run them; expires them unless renewed within `grace_s`.

        grace_s: at most the length of a lease. Call this before anything is leased.
        """
        self._held.update(dict.fromkeys(tasks, _HeldLease(node=None, owner="", expires_at=now + grace_s)))

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
        self._hold(tasks, node, now)
        return tasks

    def claim(self, node: NodeId, tasks: Collection[TaskId], *, now: float) -> None:
        """Leases the tasks that a joining node reports as running, except those that another node holds."""
        for task in tasks:
            if task in self._queue:
                del self._queue[task]
                self._hold([task], node, now)
        self.renew(node, tasks, now=now)

    def renew(self, node: NodeId, tasks: Iterable[TaskId], *, now: float) -> None:
        """Renews the leases of tasks that a node runs. The node takes over unconfirmed tasks, but no task of another
        node."""
        held = [(task, self._held.get(task)) for task in tasks]
        self._hold([task for task, lease in held if lease is not None and lease.node in (None, node)], node, now)

    def complete(self, task: TaskId) -> bool:
        """Removes a task that has a result, held or queued. Returns whether it was either."""
        if self._previous_owners:
            self._previous_owners.pop(task, None)
        return self._release(task) or self._queue.pop(task, "") is None

    def requeue(self, task: TaskId) -> None:
        """Puts a task at the front of the queue, from any state."""
        held = self._held.get(task)
        if held is not None and held.owner:
            self._previous_owners.setdefault(task, set()).add(held.owner)
        self._release(task)
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
            self._tasks_by_node.setdefault(node, {}).update(dict.fromkeys(tasks))

    def _release(self, task: TaskId) -> bool:
        held = self._held.pop(task, None)
        if held is not None and held.node is not None:
            owned = self._tasks_by_node[held.node]
            del owned[task]
            if not owned:
                del self._tasks_by_node[held.node]
        return held is not None
