"""Results of nodes: what they push and hand back, up to the admission of complete groups."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import is_not

from astraflow.access.callers import Caller, Role, current_caller
from astraflow.contract.batches import stretches
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.rollouts.partial_rollouts import PartialRollout
from astraflow.contract.rollouts.trajectories import NO_VERSION, Episode, Trajectories, TrajectoryColumns
from astraflow.dataflow.flow import Flow
from astraflow.dataflow.issuing.groups import flow_of, flow_of_group
from astraflow.dataflow.issuing.pacing import FinishedGroup
from astraflow.dataflow.operations.evaluator import Evaluator
from astraflow.dataflow.operations.node_callers import caller_node
from astraflow.dataflow.operations.result_check import ResultCheck, VersionCheck
from astraflow.dataflow.outcomes import ACCEPTED, HANDED_BACK, RETRIED, UNKNOWN, CompleteGroup, PushResult, with_push
from astraflow.dataflow.pool.registry import Node
from astraflow.dataflow.run import Run
from astraflow.dataflow.serving.stream import BUFFERED
from astraflow.runtime.tracing import span


class Results:
    """Accepts results of tasks, and admits the groups that they complete."""

    def __init__(
        self, run: Run, evaluator: Evaluator, *, version_check: VersionCheck, result_check: ResultCheck
    ) -> None:
        self._run = run
        self._evaluator = evaluator
        self._version_check = version_check
        self._result_check = result_check

    async def push(self, node_id: NodeId, episodes: Sequence[Episode], *, raw: bytes | None = None) -> list[str]:
        """Accepts episodes; returns the outcome of each once it is durable.

        raw: the push message as received, if available: stored unchanged when all of its episodes count.
        Raises: UnknownNode, InvalidInput, StorageFull.
        """
        node = caller_node(self._run, node_id)
        parts = stretches(Trajectories.of(episode.trajectories) for episode in episodes)
        self._check_versions(episodes, [part.columns for part in parts], node)
        checked = self._result_check.episodes(episodes, parts, node=node_id)
        first_leased_at = self._leased_at(episodes[0], node_id) if episodes else None
        outcomes = self.accept_results(checked, raw=raw if checked is episodes else None)
        refused = sum(map(is_not, checked, episodes)) if checked is not episodes else 0
        self._result_check.note_outcomes(node, refused=refused, outcomes=outcomes)
        self._count_results(node, checked, outcomes, first_leased_at)
        if RETRIED in outcomes:
            self._run.nodes_notifier.notify()
        elif self._evaluator.is_reserved(node_id) or (
            self._run.evaluations and any(self._is_evaluated(episode.task) for episode in episodes)
        ):
            self._run.nodes_notifier.notify(node_id)  # the node may lease further evaluation tasks
        await self._run.journal.wait_durable()
        return outcomes

    async def hand_back(self, node_id: NodeId, partials: Sequence[PartialRollout]) -> list[str]:
        """Requeues tasks that a node does not finish; returns the outcome of each once it is durable.

        Raises: UnknownNode, InvalidInput, StorageFull.
        """
        node = caller_node(self._run, node_id)
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

    def within_limits(self, episodes: Sequence[Episode], *, node: NodeId) -> Sequence[Episode]:
        """Returns the episodes with a failure in place of each that breaks a limit of its flow."""
        parts = stretches(Trajectories.of(episode.trajectories) for episode in episodes)
        return self._result_check.episodes(episodes, parts, node=node)

    def note_refused_message(self, problem: InvalidInput) -> None:
        """Notes a push or a hand-back that cannot be decoded."""
        self._result_check.note_refused_message(problem)

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

    def note_rewards(self, episodes: Sequence[Episode]) -> None:
        """Adds the rewards of training episodes to the figures of their policies."""
        now = self._run.clock.now()
        rewards: dict[PolicyId, list[float]] = {}
        parts = [Trajectories.of(episode.trajectories) for episode in episodes]
        joined = stretches(parts)
        for part in joined:
            for policy, reward in zip(part.policies, part.rewards, strict=True):
                rewards.setdefault(policy, []).append(reward)
        has_details = any(part.columns.built for part in joined)
        for episode, part in zip(episodes, parts, strict=True) if has_details else ():
            for _, trajectory in part.with_details():
                flow = self._run.flows[flow_of(episode.task)]
                self._run.streams[trajectory.policy].history.observe_interaction(trajectory)
                self._run.term_activity.add(flow.id, trajectory, now=now)
                if trajectory.ending is not None:
                    flow.counts.endings[trajectory.ending.value] += 1
        for policy, policy_rewards in rewards.items():
            self._run.activity[policy].rewards.add(*policy_rewards, now=now)
            self._run.streams[policy].history.observe_rewards(policy_rewards)

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
            error = "the node never held the task"
            self._run.events.add(RecordKind.PUSH_REFUSED, caller.name, source=caller.name, task=task, error=error)
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

    def _flow_of(self, task: TaskId) -> Flow | None:
        return self._run.flow_named(flow_of(task))

    def _is_evaluated(self, task: TaskId) -> bool:
        return bool(self._run.evaluations) and flow_of(task) in self._run.evaluations
