"""Operations of nodes on a run: membership here, leases and results in modules of their own."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from astraflow.contract.ids import NodeId
from astraflow.contract.nodes import Directive, NodeFacts, NodeStatus
from astraflow.contract.record_kinds import RecordKind
from astraflow.dataflow.operations.evaluator import Evaluator
from astraflow.dataflow.operations.leasing import Leasing
from astraflow.dataflow.operations.node_callers import caller_node, check_name_holder, nodes_of
from astraflow.dataflow.operations.reclaim import Reclaimer
from astraflow.dataflow.operations.result_check import ResultCheck, VersionCheck
from astraflow.dataflow.operations.results import Results
from astraflow.dataflow.pool.registry import Node
from astraflow.dataflow.run import Run
from astraflow.dataflow.serving.stalls import StallChange


class NodeOperations:
    """Handles tasks from lease to admitted group, by responsibility."""

    def __init__(self, run: Run) -> None:
        evaluator = Evaluator(run)
        version_check, reclaimer = VersionCheck(run, evaluator), Reclaimer(run)
        self.results = Results(run, evaluator, version_check=version_check, result_check=ResultCheck(run))
        self.leasing = Leasing(run, evaluator, version_check, reclaimer)
        self.membership = Membership(run, version_check, reclaimer)


class Membership:
    """Nodes that join, report and leave, and what happens to the tasks of nodes that do not."""

    def __init__(self, run: Run, version_check: VersionCheck, reclaimer: Reclaimer) -> None:
        self._run = run
        self._version_check = version_check
        self._reclaimer = reclaimer
        self._could_issue = True
        """Value of `may_issue` at the last tick; nodes are notified when it becomes true again."""

    async def check_nodes_needed(self) -> None:
        """Checks that the run still needs nodes. Raises: RunComplete."""
        if self._run.needs_no_nodes:
            await self._run.raise_run_complete()

    def join(self, facts: NodeFacts) -> Node:
        """Registers a node; requeues the tasks of the incarnation that it replaces, except those it reports as running.

        Raises: Conflict while a node with another credential has the name.
        """
        now, holder = self._run.clock.now(), check_name_holder(self._run, facts)
        node, replaced = self._run.registry.join(facts, now=now, wall=self._run.clock.wall(), holder=holder)
        self._run.shares.see(node.id, now=now)
        for earlier in replaced:
            self._return_tasks_of(earlier)
        for flow in self._run.all_flows:
            most = self._run.shares.room(node.id, now=now).tasks
            flow.leases.claim(node.id, facts.running, now=now, at_most=most)
        if facts.engine:  # a node that does not know its engine yet joins again once it does
            self._run.events.add(
                RecordKind.NODE_JOINED,
                node.id,
                source=facts.name,
                name=facts.name,
                pool=facts.pool,
                engine=facts.engine,
            )
        if replaced:
            self._run.nodes_notifier.notify()
        return node

    def heartbeat(self, status: NodeStatus) -> Directive:
        """Stores the report of a node and renews its leases. Raises: UnknownNode."""
        now = self._run.clock.now()
        node = caller_node(self._run, status.node)
        if status.leave_reason and node.drain_reason is None:
            self._run.events.add(RecordKind.NODE_DRAINING, node.id, reason=status.leave_reason)
        served, possible = node.versions, self._version_check.possible(status.versions)
        if possible is not status.versions:
            status = replace(status, versions=possible)
        directive = self._run.registry.heartbeat(status, now=now)
        self._run.shares.see(status.node, now=now)
        if status.versions != served:
            self._run.nodes_notifier.notify(status.node)  # the staleness gate may admit groups for newer weights
        for flow in self._run.all_flows:
            flow.leases.renew(status.node, status.running, now=now)
        if self._run.needs_no_nodes:
            return Directive(action="leave", reason="the run is complete")
        return directive

    async def wait_durable(self) -> None:
        """Waits until everything that happened so far is durable. Raises: StorageFull."""
        await self._run.journal.wait_durable()

    def leave(self, node_id: NodeId, reason: str, *, is_preempted: bool = False) -> int:
        """Removes a node that leaves; requeues its tasks. is_preempted: its machine goes away. Raises: UnknownNode."""
        return self._leave(caller_node(self._run, node_id), reason, is_preempted=is_preempted)

    def retire(self, holders: Collection[str], *, reason: str) -> int:
        """Removes the nodes of these holders and requeues their tasks. Returns the number of requeued tasks."""
        return sum(self._leave(node, reason) for node in nodes_of(self._run, holders))

    def tick(self) -> None:
        """Handles what depends on time: expired leases, unresponsive nodes, stalled trainers."""
        now = self._run.clock.now()
        expired = Counter(node_id for flow in self._run.all_flows for _, node_id in flow.expire(now=now))
        for node_id, leases in expired.items():
            if node_id is not None:
                self._note_expiries(node_id, leases)
        for node in self._run.registry.mark_silent_lost(now=now, after_s=self._run.lease_s):
            # Tasks leased after its last heartbeat would otherwise stay leased to an id that no longer exists.
            if returned := sum(flow.expire_tasks_of(node.id) for flow in self._run.all_flows):
                self._note_expiries(node.id, returned)
            self._run.shares.forget(node.id)
            silent_s = now - node.last_heartbeat_at
            self._run.events.add(RecordKind.NODE_LOST, node.id, source=node.facts.name, silent_s=silent_s)
        for stall in self._run.stall_detector.check(now=now):
            self._record_stall(stall)
        has_reclaimed = self._reclaimer.reclaim()
        may_issue = self._run.may_issue
        if (
            has_reclaimed
            or (may_issue and not self._could_issue)
            or any(flow.leases.queued for flow in self._run.all_flows)
        ):
            self._run.nodes_notifier.notify()
        self._could_issue = may_issue

    def _leave(self, node: Node, reason: str, *, is_preempted: bool = False) -> int:
        self._run.registry.leave(node.id, is_preempted=is_preempted)
        returned = self._return_tasks_of(node)
        self._run.events.add(RecordKind.NODE_LEFT, node.id, source=node.facts.name, reason=reason, tasks=returned)
        if returned:
            self._run.nodes_notifier.notify()
        return returned

    def _return_tasks_of(self, node: Node) -> int:
        """Requeues the tasks of a node that ended; returns their number."""
        returned = sum(flow.return_tasks_of(node.id) for flow in self._run.all_flows)
        self._run.shares.forget(node.id)
        return returned

    def _record_stall(self, stall: StallChange) -> None:
        """Records a stall change and notifies nodes, since flows may wait for other policies now."""
        if stall.is_stalled:
            self._run.events.add(RecordKind.TRAINER_STALLED, stall.policy, silent_s=stall.silent_s)
        else:
            self._run.events.add(RecordKind.TRAINER_RESUMED, stall.policy)
        self._run.nodes_notifier.notify()

    def _note_expiries(self, node_id: NodeId, leases: int) -> None:
        for node in self._run.registry.nodes():
            if node.id == node_id:
                node.lease_expiries += leases
        self._run.events.add(RecordKind.LEASES_EXPIRED, node_id, leases=leases)
