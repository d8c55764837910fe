"""Operations of nodes on a run: join, lease, push, hand back, heartbeat, leave."""

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby

from astraflow.access.callers import Caller, Role, current_caller
from astraflow.contract.batches import stretches
from astraflow.contract.errors import Conflict, InvalidInput, NotPermitted
from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.nodes import Directive, NodeFacts, NodeStatus
from astraflow.contract.rollouts.partial_rollouts import PartialRollout
from astraflow.contract.rollouts.tasks import Lease, Task
from astraflow.contract.rollouts.trajectories import NO_VERSION, Episode, Trajectories, TrajectoryColumns
from astraflow.dataflow.flow import Flow
from astraflow.dataflow.issuing.groups import flow_of, flow_of_group
from astraflow.dataflow.issuing.pacing import FinishedGroup
from astraflow.dataflow.issuing.staleness_gate import StalenessGate, find_surplus_policies
from astraflow.dataflow.operations.assignment import TaskAssignment
from astraflow.dataflow.operations.evaluator import Evaluator
from astraflow.dataflow.operations.reclaim import Reclaimer
from astraflow.dataflow.operations.result_check import ResultCheck
from astraflow.dataflow.operations.version_check import VersionCheck
from astraflow.dataflow.outcomes import ACCEPTED, HANDED_BACK, RETRIED, UNKNOWN, CompleteGroup, PushResult, with_push
from astraflow.dataflow.pool.registry import Node
from astraflow.dataflow.run import Run
from astraflow.dataflow.serving.stalls import StallChange
from astraflow.dataflow.serving.stream import BUFFERED
from astraflow.runtime.tracing import span


class NodeOperations:
    """Handles a task from lease to admitted group."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._evaluator = Evaluator(run)
        self._version_check = VersionCheck(run, self._evaluator)
        self._result_check = ResultCheck(run, flow_of_task=self._flow_named)
        self._reclaimer = Reclaimer(run)
        self._newest_lease_calls: Counter[NodeId] = Counter()
        """Number of lease calls by node: of several calls that wait, only the newest gets tasks."""
        self._next_flow = 0
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
        now, holder = self._run.clock.now(), self._check_name_holder(facts)
        node, replaced = self._run.registry.join(facts, now=now, wall=self._run.clock.wall(), holder=holder)
        self._run.shares.see(node.id, now=now)
        for earlier in replaced:
            self._return_tasks_of(earlier)
        for flow in self._run.all_flows:
            most = self._run.shares.room(node.id, now=now).tasks
            flow.leases.claim(node.id, facts.running, now=now, at_most=most)
        if facts.engine:  # a node that does not know its engine yet joins again once it does
            message = f"{facts.name}, pool {facts.pool}, engine {facts.engine}"
            self._run.events.add("node_joined", node.id, message, source=facts.name)
        if replaced:
            self._run.nodes_notifier.notify()
        return node

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
        self._caller_node(node_id).versions = self._version_check.possible(versions)
        self._run.shares.see(node_id, now=self._run.clock.now())
        deadline = self._run.clock.now() + wait_s
        self._newest_lease_calls[node_id] += 1
        number = self._newest_lease_calls[node_id]
        if number > 1:
            self._run.nodes_notifier.notify(node_id)  # ends an earlier call that still waits
        while True:
            subscription = self._run.nodes_notifier.subscribe(node_id)
            node = self._run.registry.get(node_id)
            is_newest = number == self._newest_lease_calls[node_id]
            may_lease = is_newest and node.drain_reason is None
            most = capacity if (allowed := self._result_check.most_tasks(node)) is None else min(allowed, capacity)
            most_evaluated = evaluation_capacity if allowed is None else min(allowed, evaluation_capacity)
            tasks = self._lease(node, most, most_evaluated) if may_lease else []
            if not tasks and is_newest:
                with self._reclaimer.waiting(node_id, most):
                    is_notified = await subscription.wait(deadline - self._run.clock.now())
            if tasks or not is_newest or not is_notified:
                await self._run.journal.wait_durable()
                return Lease(tasks=tuple(tasks), lease_s=self._run.lease_s)

    async def push(self, node_id: NodeId, episodes: Sequence[Episode], *, raw: bytes | None = None) -> list[str]:
        """Accepts episodes; returns the outcome of each once it is durable.

        raw: the push message as received, if available: stored unchanged when all of its episodes count.
        Raises: UnknownNode, InvalidInput, StorageFull.
        """
        node = self._caller_node(node_id)
        parts = stretches(Trajectories.of(episode.trajectories) for episode in episodes)
        self._check_versions(episodes, [part.columns for part in parts], node)
        checked = self._result_check.episodes(episodes, parts, node=node_id)
        first_leased_at = self._leased_at(episodes[0], node_id) if episodes else None
        outcomes = self.accept_results(checked, raw=raw if checked is episodes else None)
        refused = sum(result is not episode for result, episode in zip(checked, episodes, strict=True))
        self._result_check.note_outcomes(node, refused=refused, outcomes=outcomes)
        self._count_results(node, checked, outcomes, first_leased_at)
        if RETRIED in outcomes:
            self._run.nodes_notifier.notify()
        elif any(self._is_evaluated(episode.task) for episode in episodes) or self._evaluator.is_reserved(node_id):
            self._run.nodes_notifier.notify(node_id)  # the node may lease further evaluation tasks
        await self._run.journal.wait_durable()
        return outcomes

    def within_limits(self, episodes: Sequence[Episode], *, node: NodeId) -> Sequence[Episode]:
        """Returns the episodes with a failure in place of each that breaks a limit of its flow."""
        parts = stretches(Trajectories.of(episode.trajectories) for episode in episodes)
        return self._result_check.episodes(episodes, parts, node=node)

    def accept_results(self, episodes: Sequence[Episode], *, raw: bytes | None = None) -> list[str]:
        """Accepts episodes within their limits, and admits the groups that they complete; returns their outcomes.

        Episodes of one group that follow each other are accepted in one pass. raw: see `push`.
        """
        versions = {policy: stream.version for policy, stream in self._run.streams.items()}
        results = [
            self._accept(GroupId.unchecked(group), list(members), versions)
            for group, members in groupby(episodes, key=lambda episode: episode.task.rpartition("/")[0])
        ]
        self._record_accepted(results, raw, pushed=len(episodes))
        for result in results:
            if result.complete_group is not None:
                self.admit(result.complete_group)
        return [outcome for result in results for outcome in result.outcomes]

    def admit(self, complete: CompleteGroup) -> None:
        """Admits each policy's share of a group to its stream, or counts why not; passes evaluations on."""
        with span("rl.admit", group=complete.group.id, kept=len(complete.admission.admitted)):
            self._admit(complete)

    async def hand_back(self, node_id: NodeId, partials: Sequence[PartialRollout]) -> list[str]:
        """Requeues tasks that a node does not finish; returns the outcome of each once it is durable.

        Raises: UnknownNode, InvalidInput, StorageFull.
        """
        node = self._caller_node(node_id)
        with self._noting_refusal(node):
            for partial in partials:
                for recorded in partial.generations:
                    versions = [span.version for span in recorded.generation.spans]
                    self._version_check.check(partial.task, recorded.policy, versions, pushed_by=node_id)
        checked = [self._result_check.partial_rollout(partial, node=node_id) for partial in partials]
        outcomes = [self._hand_back(partial, node_id) for partial in checked]
        refused = sum(result is not partial for result, partial in zip(checked, partials, strict=True))
        self._result_check.note_outcomes(node, refused=refused, outcomes=outcomes)
        if HANDED_BACK in outcomes:
            if self._run.registry.get(node_id).drain_reason is None:
                self._run.shares.fail(node_id, outcomes.count(HANDED_BACK), now=self._run.clock.now())
            self._run.nodes_notifier.notify()
        await self._run.journal.wait_durable()
        return outcomes

    def heartbeat(self, status: NodeStatus) -> Directive:
        """Stores the report of a node and renews its leases. Raises: UnknownNode."""
        now = self._run.clock.now()
        node = self._caller_node(status.node)
        if status.leave_reason and node.drain_reason is None:
            self._run.events.add("node_draining", node.id, status.leave_reason)
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
        return self._leave(self._caller_node(node_id), reason, is_preempted=is_preempted)

    def _leave(self, node: Node, reason: str, *, is_preempted: bool = False) -> int:
        self._run.registry.leave(node.id, is_preempted=is_preempted)
        returned = self._return_tasks_of(node)
        message = f"{reason or 'no reason given'}; {returned} tasks returned"
        self._run.events.add("node_left", node.id, message, source=node.facts.name)
        if returned:
            self._run.nodes_notifier.notify()
        return returned

    def _return_tasks_of(self, node: Node) -> int:
        """Requeues the tasks of a node that ended; returns their number."""
        returned = sum(flow.return_tasks_of(node.id) for flow in self._run.all_flows)
        self._forget(node.id)
        return returned

    def _forget(self, node_id: NodeId) -> None:
        """Forgets what is remembered of an incarnation that ended."""
        self._newest_lease_calls.pop(node_id, None)
        self._run.shares.forget(node_id)

    def nodes_of(self, holders: Collection[str]) -> list[Node]:
        """Returns the live nodes that joined with the credentials of these holders (`Caller.holder`)."""
        return [node for node in self._run.registry.nodes() if node.holder in holders and node.is_live]

    def retire(self, holders: Collection[str], *, reason: str) -> int:
        """Removes the nodes of these holders and requeues their tasks. Returns the number of requeued tasks."""
        return sum(self._leave(node, reason) for node in self.nodes_of(holders))

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
            self._forget(node.id)
            message = f"no heartbeat for {now - node.last_heartbeat_at:.0f} s; its tasks are requeued"
            self._run.events.add("node_lost", node.id, message, source=node.facts.name)
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

    def _check_name_holder(self, facts: NodeFacts) -> str:
        """Returns the caller's holder if it may join under this name; the run token may use any. Raises: Conflict."""
        caller = current_caller()
        other = self._run.registry.node_of_other_holder(facts.name, caller.holder)
        if caller.role is Role.NODE and other is not None:
            refusal = f"a node of pool {facts.pool} tried to join under its name with another credential"
            self._run.events.add("node_refused", other.id, refusal, source=facts.name)
            raise Conflict(
                f"cannot join as {facts.name!r}: a node of pool {other.facts.pool!r} has this name with another "
                "credential; choose another --name, or stop that node",
                code="node.name_taken",
            )
        return caller.holder

    def _caller_node(self, node_id: NodeId) -> Node:
        """Returns the node that a call names. Raises: UnknownNode; NotPermitted when it has another credential."""
        node, caller = self._run.registry.get(node_id), current_caller()
        if caller.role is Role.NODE and node.holder != caller.holder:
            refusal = f"a caller of pool {caller.pool} used its id with another credential"
            self._run.events.add("node_refused", node.id, refusal, source=node.facts.name)
            raise NotPermitted(
                f"cannot act as node {node_id!r}: it joined with another credential; join under a different name",
                code="node.other_credential",
            )
        return node

    @contextmanager
    def _noting_refusal(self, node: Node) -> Iterator[None]:
        """Notes a call of a node that is refused as a whole."""
        try:
            yield
        except InvalidInput:
            self._result_check.note_outcomes(node, refused=1, outcomes=())
            raise

    def _leased_at(self, episode: Episode, node_id: NodeId) -> float | None:
        """Returns the time at which a node leased the task of an episode, None if it no longer holds it."""
        flow = self._flow_of(episode.task)
        is_held = flow is not None and flow.leases.holder(episode.task) == node_id
        return flow.leases.leased_at(episode.task) if flow is not None and is_held else None

    def _count_results(
        self, node: Node, episodes: Sequence[Episode], outcomes: Sequence[str], first_leased_at: float | None
    ) -> None:
        """Counts results towards the share of their node, and how long the first one took."""
        now = self._run.clock.now()
        accepted = outcomes.count(ACCEPTED)
        if accepted:
            self._run.shares.succeed(node.id, accepted)
            if node.kept and not self._run.shares.is_on_probation(node.id):
                node.kept = ""
        if accepted < len(episodes) and (failed := sum(episode.failure is not None for episode in episodes)):
            self._run.shares.fail(node.id, failed, now=now)
        if first_leased_at is not None and outcomes[0] == ACCEPTED:
            flow = self._flow_of(episodes[0].task)
            if flow is not None:
                flow.durations.add(now - first_leased_at)

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
        if self._evaluator.lease(assignment, node, max_tasks=evaluation_capacity):
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

    def _accept(self, group: GroupId, episodes: Sequence[Episode], versions: Mapping[PolicyId, Version]) -> PushResult:
        """Accepts episodes of one group."""
        flow = self._flow_of(episodes[0].task)
        if flow is None:
            return PushResult(group=group, outcomes=[UNKNOWN] * len(episodes))
        at = self._run.clock.wall()
        timed = [with_push(episode, at=at) if episode.hops else episode for episode in episodes]
        caller = current_caller()
        may_push = functools.partial(self._may_push, flow, caller) if caller.role is Role.NODE else None
        result = flow.accept(group, timed, versions, may_push=may_push)
        if RETRIED in result.outcomes and group in flow.open_groups:
            for episode, outcome in zip(episodes, result.outcomes, strict=True):
                if outcome == RETRIED:
                    self._run.records.record_unfinished(flow.unfinished_task(episode.task))
        return result

    def _may_push(self, flow: Flow, caller: Caller, task: TaskId) -> bool:
        """Returns whether a node may push a result of an open task: only if it holds or held the task."""
        may_push = flow.leases.may_push(task, caller.holder)
        if not may_push:
            self._run.events.add("push_refused", caller.name, f"the node never held {task}", source=caller.name)
        return may_push

    def _record_accepted(self, results: Sequence[PushResult], raw: bytes | None, *, pushed: int) -> None:
        """Records the results that count, before anything depends on them. pushed: number of episodes in `raw`."""
        self._run.journal.touch()
        episodes = [episode for result in results for episode in result.counted_episodes]
        groups = [result.group for result in results if result.counted_episodes]
        self._run.records.record_accepted(episodes, groups, raw=raw if len(episodes) == pushed else None)
        unscored = {flow.id for flow in self._run.flows.values() if flow.group_scoring is None}
        noted = [result.counted_episodes for result in results if flow_of_group(result.group) in unscored]
        self.note_rewards([episode for counted in noted for episode in counted])

    def _hand_back(self, partial: PartialRollout, node: NodeId) -> str:
        flow = self._flow_of(partial.task)
        if flow is None:
            return UNKNOWN
        outcome = flow.hand_back(
            partial, node, {} if self._is_evaluated(partial.task) else self._run.oldest_trainable_versions()
        )
        self._run.journal.touch()
        if outcome == HANDED_BACK and partial.generations:
            self._run.records.record_unfinished(flow.unfinished_task(partial.task))
        return outcome

    def _admit(self, complete: CompleteGroup) -> None:
        group, admission, surplus_policies = complete.group, complete.admission, complete.surplus_policies
        if group.flow in self._run.evaluations:
            self._evaluator.finish(group)
            return
        self._run.flows[group.flow].count_admission(admission)
        now = self._run.clock.now()
        outcomes: dict[PolicyId, str] = dict(admission.refused)
        duration_s = None if complete.issued_at is None else now - complete.issued_at
        for policy in {*admission.refused, *admission.admitted} - surplus_policies:
            if (pacer := self._run.streams[policy].pacer) is not None:
                pacer.observe_group(FinishedGroup(duration_s=duration_s, is_usable=policy in admission.admitted))
        for policy in admission.refused:
            self._run.streams[policy].counts.refused += policy not in surplus_policies
        for policy, routed in admission.admitted.items():
            stream = self._run.streams[policy]
            outcomes[policy] = stream.drop_surplus() if policy in surplus_policies else stream.admit(routed)
            if outcomes[policy] == BUFFERED:
                self._run.activity[policy].produced.add(1, now=now)
                self._run.trainers_notifier.notify(policy)
        if any(outcome != BUFFERED for outcome in outcomes.values()):
            self._run.nodes_notifier.notify()  # dropped shares give the gate headroom
        self._run.records.record_closed(
            group.id, [policy for policy, outcome in outcomes.items() if outcome == BUFFERED]
        )
        self._run.samples.add(group, outcomes, at=self._run.clock.wall())
        for routed in admission.admitted.values():
            routed.forget_calls()

    def _check_versions(
        self, episodes: Sequence[Episode], every_columns: Iterable[TrajectoryColumns], node: Node
    ) -> None:
        """Rejects a push as a whole before any of it is accepted. every_columns: of its episodes, in any order.

        Raises: InvalidInput.
        """
        if not self._run.evaluations and all(
            self._version_check.is_possible(set(columns.policies), max(columns.span_versions, default=NO_VERSION))
            for columns in every_columns
        ):
            return
        with self._noting_refusal(node):
            for episode in episodes:
                trajectories = Trajectories.of(episode.trajectories)
                for policy, versions in zip(trajectories.policies, trajectories.written_versions(), strict=True):
                    self._version_check.check(episode.task, policy, versions, pushed_by=episode.node)

    def note_refused_message(self, problem: InvalidInput) -> None:
        """Notes a push or a hand-back that cannot be decoded."""
        self._result_check.note_refused_message(problem)

    def _flow_of(self, task: TaskId) -> Flow | None:
        return self._flow_named(flow_of(task))

    def _flow_named(self, flow: FlowId) -> Flow | None:
        evaluation = self._run.evaluations.get(flow)
        return self._run.flows.get(flow) if evaluation is None else evaluation.flow

    def _is_evaluated(self, task: TaskId) -> bool:
        return bool(self._run.evaluations) and flow_of(task) in self._run.evaluations

    def note_rewards(self, episodes: Sequence[Episode]) -> None:
        """Adds the rewards of training episodes to the figures of their policies."""
        now = self._run.clock.now()
        rewards: dict[PolicyId, list[float]] = {}
        parts = [Trajectories.of(episode.trajectories) for episode in episodes]
        for part in stretches(parts):
            for policy, reward in zip(part.policies, part.rewards, strict=True):
                rewards.setdefault(policy, []).append(reward)
        for episode, part in zip(episodes, parts, strict=True):
            for _, trajectory in part.with_details():
                flow = self._run.flows[flow_of(episode.task)]
                self._run.streams[trajectory.policy].history.observe_interaction(trajectory)
                self._run.term_activity.add(flow.id, trajectory, now=now)
                if trajectory.ending is not None:
                    flow.counts.endings[trajectory.ending.value] += 1
        for policy, policy_rewards in rewards.items():
            self._run.activity[policy].rewards.add(*policy_rewards, now=now)
            self._run.streams[policy].history.observe_rewards(policy_rewards)

    def _record_stall(self, stall: StallChange) -> None:
        """Records a stall change and notifies nodes, since flows may wait for other policies now."""
        if stall.is_stalled:
            message = f"no step for {stall.silent_s:.0f} s although a batch is ready"
            self._run.events.add("trainer_stalled", stall.policy, message)
        else:
            self._run.events.add("trainer_resumed", stall.policy, "the trainer makes steps again")
        self._run.nodes_notifier.notify()

    def _note_expiries(self, node_id: NodeId, leases: int) -> None:
        for node in self._run.registry.nodes():
            if node.id == node_id:
                node.lease_expiries += leases
        self._run.events.add("leases_expired", node_id, f"{leases} leases expired; the tasks are requeued")
