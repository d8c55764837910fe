"""Takes tasks back from nodes that keep them too long, for nodes that wait for some."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from astraflow.contract.ids import NodeId
from astraflow.contract.record_kinds import RecordKind
from astraflow.dataflow.flow import Flow
from astraflow.dataflow.issuing.leases import HeldTask
from astraflow.dataflow.issuing.patience import FIRST_TASKS, MIN_S, longest_s
from astraflow.dataflow.pool.registry import Node
from astraflow.dataflow.run import Run

CHECK_S = 5.0
"""Interval at which the ages of all tasks are compared with the time limits of their nodes. Seconds."""

MAX_SCANNED = 4096
"""Oldest tasks of a flow that one check considers for nodes that wait. Count."""


class Reclaimer:
    """Decides which leased tasks return to the queue although heartbeats name them.

    - A task that is older than its node's time limit of an episode, with a margin.
    - While nodes wait without tasks, the oldest ones beyond the flow's patience (`issuing.patience`), as many as these
      nodes may hold; before anything was measured, a few, which does not count against their holders.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._idle: dict[NodeId, int] = {}
        """Tasks that each node waits for."""
        self._checked_at = run.clock.now()

    @contextmanager
    def waiting(self, node: NodeId, capacity: int) -> Iterator[None]:
        """Counts a node as waiting for this many tasks during the block."""
        self._idle[node] = capacity
        try:
            yield
        finally:
            self._idle.pop(node, None)

    def reclaim(self) -> bool:
        """Returns tasks to the queue that are kept too long; returns whether there were any."""
        now = self._run.clock.now()
        is_due = now - self._checked_at >= CHECK_S
        if is_due:
            self._checked_at = now
        has_reclaimed = False
        for flow in self._run.all_flows:
            overdue = list(self._overdue(flow, now=now)) if is_due else []
            self._take_back(flow, overdue, now=now, is_loss=True)
            late = list(self._late(flow, now=now)) if self._idle else []
            self._take_back(flow, late, now=now, is_loss=flow.durations.is_measured)
            has_reclaimed |= bool(overdue or late)
        return has_reclaimed

    def _overdue(self, flow: Flow, *, now: float) -> Iterator[HeldTask]:
        """Yields the tasks that are older than an episode on their node can be."""
        ceiling_s = self._run.episode_ceiling_s
        limits = {
            node.id: longest_s(node.facts.episode_timeout_s, ceiling_s=ceiling_s)
            for node in self._run.registry.nodes()
            if node.is_live
        }
        for held in flow.leases.older_than(min(limits.values(), default=0.0), now=now) if limits else ():
            if held.node is not None and held.age_s >= limits.get(held.node, 0.0):
                yield held

    def _late(self, flow: Flow, *, now: float) -> Iterator[HeldTask]:
        """Yields the tasks that are due for the nodes that wait."""
        wanted = self._wanted(flow, now=now)
        most = sum(wanted.values()) if flow.durations.is_measured else FIRST_TASKS  # for one node at a time
        missing = min(most, sum(wanted.values())) - flow.leases.queued
        for held in islice(flow.leases.older_than(MIN_S, now=now), MAX_SCANNED) if missing > 0 else ():
            has_taker = held.node is not None and wanted.keys() - {held.node}
            if has_taker and held.age_s >= flow.durations.patience_s(requeues=held.requeues):
                yield held
                missing -= 1
                if missing <= 0:
                    return

    def _wanted(self, flow: Flow, *, now: float) -> dict[NodeId, int]:
        """Returns the tasks that each waiting node may get of a flow; nodes that may get none are left out.

        Of an evaluation that was not measured none: its nodes may load weights for longer than its episodes take.
        """
        if not flow.durations.is_measured and flow.spec.evaluation_share is not None:
            return {}
        nodes = [node for node in self._run.registry.nodes() if node.id in self._idle and node.is_live]
        able = [node for node in nodes if node.drain_reason is None and node.facts.serves(flow.served_policies)]
        wanted = {node.id: self._idle[node.id] for node in able}
        for node in able:
            room = self._run.shares.room(node.id, now=now).tasks
            most = wanted[node.id] if room is None else min(room, wanted[node.id])
            first = FIRST_TASKS - flow.leases.held_by(node.id)
            wanted[node.id] = most if flow.durations.is_measured else min(most, first)
        return {node: tasks for node, tasks in wanted.items() if tasks > 0}

    def _take_back(self, flow: Flow, tasks: Sequence[HeldTask], *, now: float, is_loss: bool) -> None:
        """Requeues tasks and records it, by node. is_loss: whether it counts against their nodes."""
        by_node: dict[NodeId, list[HeldTask]] = {}
        for held in tasks:
            if held.node is not None:
                by_node.setdefault(held.node, []).append(held)
        flow.reclaim([held.task for held in tasks])
        for node_id, kept in by_node.items():
            results = self._run.shares.results_of(node_id)
            if is_loss:
                self._run.shares.lose(node_id, len(kept), now=now)
            held_s = max(held.age_s for held in kept)
            self._run.events.add(RecordKind.LEASES_EXPIRED, node_id, tasks=len(kept), held_s=held_s, results=results)
            for node in self._run.registry.nodes():
                if node.id == node_id:
                    self._note(node, kept, results)

    def _note(self, node: Node, kept: Sequence[HeldTask], results: int) -> None:
        node.lease_expiries += len(kept)
        if self._run.shares.is_on_probation(node.id) and not node.kept:
            returned = f"{results} results" if results else "no result"
            node.kept = f"{len(kept)} tasks for {kept[0].age_s:.0f} s, and had returned {returned}"
