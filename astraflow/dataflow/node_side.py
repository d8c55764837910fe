"""What nodes do to a run: join, lease, push, hand back, beat, leave."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from astraflow.access.callers import Role, current_caller
from astraflow.contract.errors import Conflict, NotPermitted
from astraflow.contract.groups import Group
from astraflow.contract.ids import NodeId, PolicyId, TaskId, Version
from astraflow.contract.nodes import Directive, NodeFacts, NodeStatus
from astraflow.contract.partials import Partial
from astraflow.contract.tasks import Lease, Task
from astraflow.contract.trajectories import Episode
from astraflow.dataflow.admitting.admitter import Admission
from astraflow.dataflow.admitting.reward_range import bounded_rewards
from astraflow.dataflow.evaluating.evaluator import Evaluator
from astraflow.dataflow.fates import HANDED_BACK, RETRIED, UNKNOWN, Taken
from astraflow.dataflow.flow import Flow
from astraflow.dataflow.issuing.groups import flow_of
from astraflow.dataflow.issuing.handout import Handout
from astraflow.dataflow.issuing.stalls import Stall
from astraflow.dataflow.issuing.throttle import Gate, spare_policies
from astraflow.dataflow.origins import Origins
from astraflow.dataflow.pool.registry import Node
from astraflow.dataflow.run import Run
from astraflow.dataflow.serving.stream import BUFFERED
from astraflow.runtime.tracing import span


class NodeSide:
    """The way of a task through a run, from lease to admitted group."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._evaluator = Evaluator(run)
        self._origins = Origins(run, self._evaluator)
        self._next_flow = 0
        self._might_begin = True
        """At the last tick. When it becomes true again, nodes are told."""

    async def check_wanted(self) -> None:
        """Raises: RunComplete when the run needs no nodes any more."""
        if self._run.needs_no_nodes:
            await self._run.refuse_complete()

    def join(self, facts: NodeFacts) -> Node:
        """A node takes part; tasks of the incarnation it replaces return at once, those it says it runs are its own.

        Raises: Conflict while a node with another credential has the name.
        """
        now, holder = self._run.clock.now(), self._holder_of_name(facts)
        node, replaced = self._run.registry.join(facts, now=now, wall=self._run.clock.wall(), holder=holder)
        for flow in self._run.every_flow:
            for earlier in replaced:
                flow.return_all_of(earlier.id)
            flow.leases.claim(node.id, facts.running, now=now)
        if facts.engine:  # a node that has yet to learn which engine to build joins again when it has
            message = f"{facts.name}, pool {facts.pool}, engine {facts.engine}"
            self._run.events.add("node_joined", node.id, message, source=facts.name)
        if replaced:
            self._run.nodes_bell.ring()
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
        """Up to `capacity` tasks for a node that serves `versions`, waiting up to `wait_s` for the first.

        evaluation_capacity: evaluation tasks that the node takes at once, those it holds included.
        Raises: UnknownNode.
        """
        self._own(node_id).versions = versions
        deadline = self._run.clock.now() + wait_s
        while True:
            ring = self._run.nodes_bell.listen(node_id)
            node = self._run.registry.get(node_id)
            tasks = [] if node.drain_reason is not None else self._lease(node, capacity, evaluation_capacity)
            if tasks or not await ring.within(deadline - self._run.clock.now()):
                await self._run.journal.durable()
                return Lease(tasks=tuple(tasks), lease_s=self._run.lease_s)

    async def push(self, node_id: NodeId, episodes: Sequence[Episode], *, raw: bytes | None = None) -> list[str]:
        """Take episodes in; returns the fate of each once it is durable.

        raw: the push as it came, if it did: kept as it is when all of it counts.
        Raises: UnknownNode, InvalidInput, StorageFull.
        """
        self._own(node_id)
        self._check(episodes)
        bounded = [self._bounded(episode, node_id) for episode in episodes]
        if any(one is not episode for one, episode in zip(bounded, episodes, strict=True)):
            episodes, raw = bounded, None
        versions = {policy: stream.version for policy, stream in self._run.streams.items()}
        taken = [self._take(episode, versions) for episode in episodes]
        counted = {one.counted.task: one for one in taken if one.counted is not None}
        self._keep(list(counted.values()), raw if len(counted) == len(episodes) else None)
        for one in taken:
            if one.finished is not None and one.admission is not None:
                with span("rl.admit", group=one.finished.id, kept=len(one.admission.kept)):
                    self._finish(one.finished, one.admission, spare_for=one.spare_for)
        fates = [one.fate for one in taken]
        if RETRIED in fates:
            self._run.nodes_bell.ring()
        elif any(self._is_evaluated(episode.task) for episode in episodes):
            self._run.nodes_bell.ring(node_id)  # it may take others in their place
        await self._run.journal.durable()
        return fates

    async def hand_back(self, node_id: NodeId, partials: Sequence[Partial]) -> list[str]:
        """Put tasks back that a node does not finish; returns the fate of each once it is durable.

        Raises: UnknownNode, InvalidInput, StorageFull.
        """
        self._own(node_id)
        for partial in partials:
            for recorded in partial.generations:
                versions = [span.version for span in recorded.generation.spans]
                self._origins.check(partial.task, recorded.policy, versions, pushed_by=node_id)
        fates = [self._hand_back(partial, node_id) for partial in partials]
        if HANDED_BACK in fates:
            self._run.nodes_bell.ring()
        await self._run.journal.durable()
        return fates

    def beat(self, status: NodeStatus) -> Directive:
        """A node reports, which renews its leases. Raises: UnknownNode."""
        now = self._run.clock.now()
        node = self._own(status.node)
        if status.ending and node.drain_reason is None:
            self._run.events.add("node_draining", node.id, status.ending)
        served = node.versions
        directive = self._run.registry.beat(status, now=now)
        if status.versions != served:
            self._run.nodes_bell.ring(status.node)  # newer weights may be what the gate waits for
        for flow in self._run.every_flow:
            flow.leases.renew(status.node, status.running, now=now)
        if self._run.needs_no_nodes:
            return Directive(action="leave", reason="the run is complete")
        return directive

    async def durable(self) -> None:
        """Waits until everything that happened so far is durable. Raises: StorageFull."""
        await self._run.journal.durable()

    def leave(self, node_id: NodeId, reason: str, *, is_taken: bool = False) -> int:
        """A node says goodbye; its tasks return at once. is_taken: its machine is taken away. Raises: UnknownNode."""
        return self._leave(self._own(node_id), reason, is_taken=is_taken)

    def _leave(self, node: Node, reason: str, *, is_taken: bool = False) -> int:
        self._run.registry.leave(node.id, is_taken=is_taken)
        returned = sum(flow.return_all_of(node.id) for flow in self._run.every_flow)
        message = f"{reason or 'no reason given'}; {returned} tasks returned"
        self._run.events.add("node_left", node.id, message, source=node.facts.name)
        if returned:
            self._run.nodes_bell.ring()
        return returned

    def of(self, holders: Collection[str]) -> list[Node]:
        """The nodes that take part and joined with the credentials of these holders (`Caller.holder`)."""
        return [node for node in self._run.registry.nodes() if node.holder in holders and node.is_live]

    def retire(self, holders: Collection[str], *, reason: str) -> int:
        """Ends the part of these holders' nodes; their tasks return at once. Returns how many."""
        return sum(self._leave(node, reason) for node in self.of(holders))

    def tick(self) -> None:
        """What time brings: leases that run out, nodes that went quiet, trainers that stalled."""
        now = self._run.clock.now()
        holders = Counter(holder for flow in self._run.every_flow for _, holder in flow.expire(now=now))
        for holder, leases in holders.items():
            if holder is not None:
                self._note_expiries(holder, leases)
        for node in self._run.registry.lose_silent(now=now, after_s=self._run.lease_s):
            # What it leased after its last beat would outlive it, held by an id that nobody has any more.
            if expired := sum(flow.expire_all_of(node.id) for flow in self._run.every_flow):
                self._note_expiries(node.id, expired)
            message = f"no beat for {now - node.beat_at:.0f} s; its tasks go to others"
            self._run.events.add("node_lost", node.id, message, source=node.facts.name)
        for stall in self._run.stalls.look(now=now):
            self._note_stall(stall)
        may_begin = self._run.may_begin
        if (may_begin and not self._might_begin) or any(flow.leases.queued for flow in self._run.every_flow):
            self._run.nodes_bell.ring()
        self._might_begin = may_begin

    def _holder_of_name(self, facts: NodeFacts) -> str:
        """The caller, who may join under this name. The run token may take any. Raises: Conflict."""
        caller = current_caller()
        other = self._run.registry.other_holder(facts.name, caller.holder)
        if caller.role is Role.NODE and other is not None:
            refusal = f"a node of pool {facts.pool} asked for its name with another credential"
            self._run.events.add("node_refused", other.id, refusal, source=facts.name)
            raise Conflict(
                f"cannot join as {facts.name}: a node of pool {other.facts.pool} takes part under this name with "
                "another credential; choose another --name, or stop that node"
            )
        return caller.holder

    def _own(self, node_id: NodeId) -> Node:
        """The node that a call names. Raises: UnknownNode; NotPermitted when it joined with another credential."""
        node, caller = self._run.registry.get(node_id), current_caller()
        if caller.role is Role.NODE and node.holder != caller.holder:
            refusal = f"a node of pool {caller.pool} spoke for it with another credential"
            self._run.events.add("node_refused", node.id, refusal, source=node.facts.name)
            raise NotPermitted(
                f"cannot speak for node {node_id}: it joined with another credential; join under a name of your own"
            )
        return node

    def _bounded(self, episode: Episode, node_id: NodeId) -> Episode:
        """The episode, or a failure of its reward when that is beyond the flow's range."""
        flow = self._flow_of(episode.task)
        bounded = episode if flow is None else bounded_rewards(episode, flow.reward_range)
        if bounded.failure is not None and bounded is not episode:
            self._run.events.add("push_refused", node_id, f"{episode.task}: {bounded.failure.message}")
        return bounded

    def _lease(self, node: Node, capacity: int, evaluation_capacity: int) -> list[Task]:
        """The share of evaluations, then queued tasks, then new groups from the flows in turn, as the gates allow."""
        handout = Handout(node.id, capacity, served=node.versions, now=self._run.clock.now())
        self._evaluator.lease(handout, at_most=evaluation_capacity)
        flows = [] if self._run.is_over else list(self._run.flows.values())
        for flow in flows:
            handout.take_from(flow)
        idle = 0
        while handout.room and idle < len(flows):
            flow = flows[self._next_flow % len(flows)]
            self._next_flow += 1
            spare = self._spare_for(flow, node)
            if spare is None:
                idle += 1
                continue
            idle = 0
            self._run.records.issued(flow.issue(served=node.versions, spare_for=spare))
            for policy in flow.policies:
                self._run.streams[policy].counts.issued += policy not in spare
            handout.take_from(flow)
        return handout.tasks

    def _spare_for(self, flow: Flow, node: Node) -> frozenset[PolicyId] | None:
        """Which policies another group for a node would be to spare for; None while the gates let none out to it."""
        if flow.is_paused or not self._run.may_begin:
            return None
        return spare_policies({policy: self._gate(flow, policy, node) for policy in flow.policies})

    def _gate(self, flow: Flow, policy: PolicyId, node: Node) -> Gate:
        """What a node begins is as old as its weights. It is a full stream that is shed, never one it is behind in."""
        stream = self._run.streams[policy]
        room = stream.issue_room(node.versions.get(policy))
        is_shed = room <= 0 and not flow.waits_when_full and self._run.stalls.is_stalled(policy)
        return Gate(room=room, is_waited_for=not is_shed or stream.issue_room() > 0)

    def _take(self, episode: Episode, versions: Mapping[PolicyId, Version]) -> Taken:
        flow = self._flow_of(episode.task)
        if flow is None:
            return Taken(fate=UNKNOWN)
        caller = current_caller()
        if (
            caller.role is Role.NODE
            and not flow.leases.may_bring(episode.task, caller.holder)
            and flow.is_out(episode.task)
        ):
            self._run.events.add("push_refused", caller.name, f"it never held {episode.task}", source=caller.name)
            return flow.refuse_foreign()
        taken = flow.take(episode, versions)
        if taken.fate == RETRIED:
            self._run.records.unfinished(flow.unfinished(episode.task))
        return taken

    def _keep(self, taken: Sequence[Taken], raw: bytes | None) -> None:
        """Have what counts kept, before anything is built upon it."""
        self._run.journal.touch()
        episodes = [one.counted for one in taken if one.counted is not None]
        self._run.records.accepted(episodes, [one.group for one in taken if one.group is not None], raw=raw)
        for episode in episodes:
            if not self._is_evaluated(episode.task):
                self._note_rewards(episode)

    def _hand_back(self, partial: Partial, node: NodeId) -> str:
        flow = self._flow_of(partial.task)
        if flow is None:
            return UNKNOWN
        fate = flow.hand_back(partial, node, {} if self._is_evaluated(partial.task) else self._run.floors())
        self._run.journal.touch()
        if fate == HANDED_BACK and partial.generations:
            self._run.records.unfinished(flow.unfinished(partial.task))
        return fate

    def _finish(self, group: Group, admission: Admission, *, spare_for: frozenset[PolicyId]) -> None:
        """Put a group's shares into their streams, or note why not; an evaluation's feeds none."""
        if group.flow in self._run.evaluations:
            self._evaluator.finish(group)
            return
        self._run.flows[group.flow].count_admission(admission)
        now = self._run.clock.now()
        fates: dict[PolicyId, str] = dict(admission.refused)
        for policy in admission.refused:
            self._run.streams[policy].counts.refused += policy not in spare_for
        for policy, routed in admission.kept.items():
            stream = self._run.streams[policy]
            fates[policy] = stream.shed() if policy in spare_for else stream.admit(routed)
            if fates[policy] == BUFFERED:
                self._run.ledger[policy].produced.add(1, now=now)
                self._run.trainers_bell.ring(policy)
        if any(fate != BUFFERED for fate in fates.values()):
            self._run.nodes_bell.ring()  # what is dropped makes room at the gate
        self._run.records.closed(group.id, [policy for policy, fate in fates.items() if fate == BUFFERED])
        self._run.samples.add(group, fates, at=self._run.clock.wall())

    def _check(self, episodes: Sequence[Episode]) -> None:
        """Refuse a push as a whole before anything of it is taken in. Raises: InvalidInput."""
        for episode in episodes:
            for trajectory in episode.trajectories:
                versions = [span.version for span in trajectory.spans if span.version is not None]
                self._origins.check(episode.task, trajectory.policy, versions, pushed_by=episode.node)

    def _flow_of(self, task: TaskId) -> Flow | None:
        flow = flow_of(task)
        evaluation = self._run.evaluations.get(flow)
        return self._run.flows.get(flow) if evaluation is None else evaluation.flow

    def _is_evaluated(self, task: TaskId) -> bool:
        return bool(self._run.evaluations) and flow_of(task) in self._run.evaluations

    def _note_rewards(self, episode: Episode) -> None:
        now = self._run.clock.now()
        for trajectory in episode.trajectories:
            self._run.ledger[trajectory.policy].rewards.add(trajectory.reward, now=now)
            self._run.streams[trajectory.policy].observe(trajectory.reward)

    def _note_stall(self, stall: Stall) -> None:
        """Whom a flow waits for has changed."""
        if stall.is_stalled:
            message = f"no step for {stall.silent_s:.0f} s although a batch is ready for it"
            self._run.events.add("trainer_stalled", stall.policy, message)
        else:
            self._run.events.add("trainer_moves", stall.policy, "it makes steps again")
        self._run.nodes_bell.ring()

    def _note_expiries(self, holder: NodeId, leases: int) -> None:
        for node in self._run.registry.nodes():
            if node.id == holder:
                node.lease_expiries += leases
        self._run.events.add("leases_expired", holder, f"{leases} of its leases ran out: the tasks go to others")
