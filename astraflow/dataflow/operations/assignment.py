"""The tasks of one answer to a node's lease request."""

from collections.abc import Callable, Mapping

from astraflow.contract.ids import NodeId, PolicyId, Version
from astraflow.contract.rollouts.partial_rollouts import MAX_PARTIAL_ROLLOUT_BYTES, total_size_bytes
from astraflow.contract.rollouts.tasks import Task
from astraflow.dataflow.flow import Flow

MAX_LEASE_BYTES = MAX_PARTIAL_ROLLOUT_BYTES
"""Bound of the partial rollouts in one answer to a lease request; the task that exceeds it is the last one."""


class TaskAssignment:
    """Tasks for one node, limited by its capacity and by the partial rollouts that fit into a message."""

    def __init__(
        self,
        node: NodeId,
        capacity: int,
        *,
        served: Mapping[PolicyId, Version],
        now: float,
        may_run: Callable[[Flow], bool] = lambda flow: True,
    ) -> None:
        """served: the versions that the node begins the tasks with. may_run: whether it serves a flow's policies."""
        self.node = node
        self.tasks: list[Task] = []
        self._served = served
        self._capacity = capacity
        self._remaining_bytes = MAX_LEASE_BYTES
        self._now = now
        self.may_run = may_run

    @property
    def free_slots(self) -> int:
        """Number of tasks that may still be added."""
        return self._capacity - len(self.tasks) if self._remaining_bytes > 0 else 0

    def extend(self, capacity: int) -> bool:
        """Raises the number of tasks to `capacity`; returns whether that makes room."""
        self._capacity = max(self._capacity, capacity)
        return self.free_slots > 0

    def add_tasks_from(self, flow: Flow, *, max_tasks: int | None = None) -> int:
        """Adds queued tasks of a flow; returns their number."""
        free_slots = self.free_slots if max_tasks is None else min(self.free_slots, max_tasks)
        leased = flow.lease(
            self.node, free_slots, served=self._served, now=self._now, remaining_bytes=self._remaining_bytes
        )
        self._remaining_bytes -= sum(total_size_bytes(task.resume_from) for task in leased if task.resume_from)
        self.tasks += leased
        return len(leased)
