"""Leases tasks to nodes: queued ones, and those of new groups as far as the gates of their policies allow."""

import asyncio
from collections.abc import Mapping, Sequence

from astraflow.contract.ids import NodeId, PolicyId, Version
from astraflow.contract.rollouts.tasks import Lease, Task
from astraflow.dataflow.flow import Flow
from astraflow.dataflow.issuing.staleness_gate import StalenessGate, find_surplus_policies
from astraflow.dataflow.operations.assignment import TaskAssignment
from astraflow.dataflow.operations.evaluator import Evaluator
from astraflow.dataflow.operations.node_callers import caller_node
from astraflow.dataflow.operations.reclaim import Reclaimer
from astraflow.dataflow.operations.result_check import VersionCheck
from astraflow.dataflow.pool.registry import Node
from astraflow.dataflow.run import Run


class Leasing:
    """Answers the lease calls of nodes."""

    def __init__(self, run: Run, evaluator: Evaluator, version_check: VersionCheck, reclaimer: Reclaimer) -> None:
        self._run = run
        self._evaluator = evaluator
        self._version_check = version_check
        self._reclaimer = reclaimer
        self._next_flow = 0

    async def lease(
        self,
        node_id: NodeId,
        capacity: int,
        *,
        versions: Mapping[PolicyId, Version],
        wait_s: float,
        evaluation_capacity: int = 0,
    ) -> Lease:
        """Leases up to `capacity` tasks to a node that serves `versions`, waiting up to `wait_s` for the first.

        evaluation_capacity: evaluation tasks that the node runs at once, including those it holds.
        Raises: UnknownNode.
        """
        node = caller_node(self._run, node_id)
        node.versions = self._version_check.possible(versions)
        self._run.shares.see(node_id, now=self._run.clock.now())
        deadline = self._run.clock.now() + wait_s
        node.lease_calls += 1
        number = node.lease_calls
        if number > 1:
            self._run.nodes_notifier.notify(node_id)  # ends an earlier call that still waits
        while True:
            subscription = self._run.nodes_notifier.subscribe(node_id)
            node = self._run.registry.get(node_id)
            is_newest = number == node.lease_calls
            may_lease = is_newest and node.drain_reason is None
            tasks = self._lease(node, capacity, evaluation_capacity) if may_lease else []
            if not tasks and is_newest:
                with self._reclaimer.waiting(node_id, capacity):
                    is_notified = await subscription.wait(deadline - self._run.clock.now())
            if tasks or not is_newest or not is_notified:
                try:
                    await self._run.journal.wait_durable()
                except asyncio.CancelledError:  # the caller is gone, for example when both were suspended
                    self.take_back(tasks, node_id)
                    raise
                return Lease(tasks=tuple(tasks), lease_s=self._run.lease_s)

    def take_back(self, tasks: Sequence[Task], node: NodeId) -> None:
        """Requeues the tasks of an answer that its node does not get."""
        for task in reversed(tasks):
            flow = self._run.flow_named(task.flow)
            if flow is not None and flow.leases.holder(task.id) == node:
                flow.leases.requeue(task.id)
                flow.counts.tasks_returned += 1
        self._run.nodes_notifier.notify()

    def _lease(self, node: Node, capacity: int, evaluation_capacity: int) -> list[Task]:
        """Leases evaluation tasks, then queued tasks, then new groups of the flows in turn, as the gates allow.

        Beyond the node's share only groups that leave the next batch of every trainer to others.
        """
        room = self._run.shares.room(node.id, now=self._run.clock.now())
        assignment = TaskAssignment(
            node.id,
            capacity if room.tasks is None else min(capacity, room.tasks),
            served=node.versions,
            now=self._run.clock.now(),
            may_run=lambda flow: node.facts.serves(flow.served_policies),
        )
        if self._evaluator.lease(assignment, node, max_tasks=0 if room.is_blocked else evaluation_capacity):
            return assignment.tasks
        flows = [] if self._run.is_over else [flow for flow in self._run.flows.values() if flow.answers is None]
        flows = [flow for flow in flows if assignment.may_run(flow)]
        for flow in flows:
            assignment.add_tasks_from(flow)
        self._issue(assignment, node, flows)
        if room.tasks is not None and room.may_use_slack and assignment.extend(capacity):
            self._issue(assignment, node, flows, is_slack=True)
        return assignment.tasks

    def _issue(self, assignment: TaskAssignment, node: Node, flows: Sequence[Flow], *, is_slack: bool = False) -> None:
        """Issues groups of the flows in turn, as the gates allow, and leases their tasks.

        is_slack: whether to leave the next batch of every trainer to other nodes.
        """
        idle = issued = 0
        while issued < assignment.free_slots and idle < len(flows):
            flow = flows[self._next_flow % len(flows)]
            self._next_flow += 1
            surplus = self._surplus_policies_for(flow, node, is_slack=is_slack)
            if surplus is None:
                idle += 1
                continue
            idle = 0
            group = flow.issue(served=self._trained_versions(node), surplus_policies=surplus)
            group.issued_at = self._run.clock.now()
            issued += group.size
            self._run.records.record_issued(group)
            for policy in flow.policies:
                self._run.streams[policy].counts.issued += policy not in surplus
        for flow in flows if issued else ():
            assignment.add_tasks_from(flow)

    def _trained_versions(self, node: Node) -> dict[PolicyId, Version]:
        """Returns the versions that a node serves, without one that its trainer has not reported yet: every node could
        have to wait for it before it may help with the group."""
        streams = self._run.streams
        return {
            policy: min(version, streams[policy].version) if policy in streams else version
            for policy, version in node.versions.items()
        }

    def _surplus_policies_for(self, flow: Flow, node: Node, *, is_slack: bool) -> frozenset[PolicyId] | None:
        """Returns the policies for which another group would be surplus; None while the gates admit none."""
        if flow.is_paused or not self._run.may_issue:
            return None
        gates = {policy: self._gate(flow, policy, node, is_slack=is_slack) for policy in flow.policies}
        return find_surplus_policies(gates)

    def _gate(self, flow: Flow, policy: PolicyId, node: Node, *, is_slack: bool) -> StalenessGate:
        """Computes the gate of a policy: a full stream may be shed, a stream in which the node only lags may not.

        Pacing closes the gate earlier, except for a stalled trainer: the others continue, up to its staleness bound.
        """
        stream = self._run.streams[policy]
        reserved_groups = stream.batch_groups if is_slack else 0
        headroom = stream.issue_headroom(node.versions.get(policy)) - reserved_groups
        is_stalled = self._run.stall_detector.is_stalled(policy)
        pace = stream.pace() if headroom > 0 and not is_stalled else None
        if pace is not None and pace.outstanding + reserved_groups >= pace.limit:
            return StalenessGate(headroom=0, must_wait_for_policy=True)
        is_shed = headroom <= 0 and not flow.waits_when_full and is_stalled
        must_wait = not is_shed or stream.issue_headroom(stream.published_version) > 0
        return StalenessGate(headroom=headroom, must_wait_for_policy=must_wait)
