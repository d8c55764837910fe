"""Which node holds which task, and until when."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import islice

from astraflow.contract.ids import NodeId, TaskId, name_of


@dataclass(slots=True)
class _Held:
    node: NodeId | None
    owner: str
    """Whose lease it is, over the node's incarnations; empty while that is not known."""
    expires_at: float


class Leases:
    """Tasks that wait for a node, and tasks that a node holds. Time is handed in, in seconds, and never goes back.

        queued ──lease, claim──► held ──complete──► forgotten
           ▲                      │ ▲
           │                      │ └──beat renews
           └─expire, return───────┘

    A returned task goes to the front of the queue: it is the oldest work there is. Every operation takes time for the
    tasks that it moves, however many others there are: leases are of one length, so those renewed last run out last.
    """

    def __init__(self, lease_s: float, *, owner_of: Callable[[NodeId], str] = name_of) -> None:
        """owner_of: whose the leases of a node are, equal for all incarnations of a node and for no other node."""
        self._lease_s = lease_s
        self._owner_of = owner_of
        self._queue: OrderedDict[TaskId, None] = OrderedDict()
        self._held: OrderedDict[TaskId, _Held] = OrderedDict()
        """In the order in which they run out."""
        self._of_node: dict[NodeId, dict[TaskId, None]] = {}
        self._earlier: dict[TaskId, set[str]] = {}
        """Owners of the leases of a task before it was queued again."""

    @property
    def queued(self) -> int:
        """Tasks that wait for a node."""
        return len(self._queue)

    @property
    def held(self) -> int:
        """Tasks that a node holds."""
        return len(self._held)

    def held_by(self, node: NodeId) -> int:
        """Tasks that this node holds."""
        return len(self._of_node.get(node, ()))

    def holder(self, task: TaskId) -> NodeId | None:
        """Who holds a task; None when it is queued, in doubt or forgotten."""
        held = self._held.get(task)
        return held.node if held is not None else None

    def may_bring(self, task: TaskId, owner: str) -> bool:
        """Whether a result can be this owner's work: it holds or held the task, or the holder is not known."""
        held = self._held.get(task)
        if held is not None and held.owner in ("", owner):
            return True
        return owner in self._earlier.get(task, ())

    def add(self, tasks: Iterable[TaskId]) -> None:
        """Queue new tasks."""
        self._queue.update(dict.fromkeys(tasks))

    def add_in_doubt(self, tasks: Iterable[TaskId], *, now: float, grace_s: float) -> None:
        """After a restart: some node may still run these; they are queued when none says so within `grace_s`.

        grace_s: at most the time of a lease. To be called before anything is leased.
        """
        for task in tasks:
            self._held[task] = _Held(node=None, owner="", expires_at=now + grace_s)

    def lease(
        self, node: NodeId, capacity: int, *, now: float, suits: Callable[[TaskId], bool] = lambda task: True
    ) -> list[TaskId]:
        """Hand up to `capacity` queued tasks to a node, those that suit it; the others keep their places.

        A capacity below 0 is none: a node may hold more than its share by now.
        """
        tasks = list(islice((task for task in self._queue if suits(task)), max(0, capacity)))
        for task in tasks:
            del self._queue[task]
            self._hold(task, node, now)
        return tasks

    def claim(self, node: NodeId, tasks: Collection[TaskId], *, now: float) -> None:
        """A node that joins says it runs these: what nobody else holds is its own, wherever it is."""
        for task in tasks:
            if task in self._queue:
                del self._queue[task]
                self._hold(task, node, now)
        self.renew(node, tasks, now=now)

    def renew(self, node: NodeId, tasks: Iterable[TaskId], *, now: float) -> None:
        """The node says it still runs these. A task in doubt becomes its own; one held by another node stays there."""
        for task in tasks:
            held = self._held.get(task)
            if held is not None and held.node is None:
                self._hold(task, node, now)
            elif held is not None and held.node == node:
                held.expires_at = now + self._lease_s
                self._held.move_to_end(task)

    def complete(self, task: TaskId) -> bool:
        """A result is in: forget the task, whether held or queued again. False when it is neither."""
        was_queued = task in self._queue
        self._earlier.pop(task, None)
        self._queue.pop(task, None)
        return self._let_go(task) or was_queued

    def give_back(self, task: TaskId) -> None:
        """Put a task at the front of the queue, from wherever it is."""
        held = self._held.get(task)
        if held is not None and held.owner:
            self._earlier.setdefault(task, set()).add(held.owner)
        self._let_go(task)
        self._queue[task] = None
        self._queue.move_to_end(task, last=False)

    def expire(self, *, now: float) -> list[tuple[TaskId, NodeId | None]]:
        """Return the tasks whose lease ran out to the queue; tells which, and who held them, longest out first."""
        expired: list[tuple[TaskId, NodeId | None]] = []
        for task, held in self._held.items():
            if held.expires_at > now:
                break
            expired.append((task, held.node))
        self._give_all_back([task for task, _ in expired])
        return expired

    def return_all_of(self, node: NodeId) -> list[TaskId]:
        """Return everything a node holds to the queue at once."""
        return self._give_all_back(list(self._of_node.get(node, ())))

    def _give_all_back(self, tasks: list[TaskId]) -> list[TaskId]:
        """The first of them is the next to be leased."""
        for task in reversed(tasks):
            self.give_back(task)
        return tasks

    def _hold(self, task: TaskId, node: NodeId, now: float) -> None:
        self._held[task] = _Held(node=node, owner=self._owner_of(node), expires_at=now + self._lease_s)
        self._held.move_to_end(task)
        self._of_node.setdefault(node, {})[task] = None

    def _let_go(self, task: TaskId) -> bool:
        held = self._held.pop(task, None)
        if held is not None and held.node is not None:
            owned = self._of_node[held.node]
            del owned[task]
            if not owned:
                del self._of_node[held.node]
        return held is not None
