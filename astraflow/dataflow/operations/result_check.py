"""Checks what nodes push and hand back against the limits of its flow, and notes refusals of each node."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from astraflow.access.callers import current_caller
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import MAX_VERSION, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.rollouts.limits import MAX_TRAJECTORIES, RowLimits
from astraflow.contract.rollouts.partial_rollouts import PartialRollout
from astraflow.contract.rollouts.trajectories import Episode, Trajectories
from astraflow.dataflow.admission.limits import Defect, Refusal, are_within, checked, generation_defect
from astraflow.dataflow.flow import Flow
from astraflow.dataflow.issuing.groups import flow_of
from astraflow.dataflow.operations.evaluator import Evaluator
from astraflow.dataflow.operations.node_callers import nodes_of
from astraflow.dataflow.outcomes import ACCEPTED
from astraflow.dataflow.pool.registry import Node
from astraflow.dataflow.run import Run

_TRAJECTORIES = attrgetter("trajectories")


class ResultCheck:
    """Replaces results beyond limits by failures, and withholds tasks from nodes that push nothing else."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def episodes(
        self, episodes: Sequence[Episode], parts: Sequence[Trajectories], *, node: NodeId
    ) -> Sequence[Episode]:
        """Returns the episodes with a failure in place of each that breaks a limit of its flow: the same sequence if
        none does. parts: their trajectories in as few parts as possible. node: for the event."""
        if self._are_within(episodes, parts, self._run.all_flows):
            return episodes
        flows = {name: self._run.flow_named(name) for name in {flow_of(episode.task) for episode in episodes}}
        if self._are_within(episodes, parts, [flow for flow in flows.values() if flow is not None]):
            return episodes
        results = [self._checked(episode, flows[flow_of(episode.task)]) for episode in episodes]
        refused = [result for result, episode in zip(results, episodes, strict=True) if result is not episode]
        if not refused:
            return episodes
        failure = refused[0].failure
        others: dict[str, Any] = {"others": len(refused) - 1, "results": len(results)} if len(refused) > 1 else {}
        self._run.events.add(
            RecordKind.PUSH_REFUSED,
            node,
            cause=failure.limit if isinstance(failure, Refusal) else "",
            task=refused[0].task,
            error=failure.message if failure else "",
            **others,
        )
        return results

    def partial_rollout(self, partial: PartialRollout, *, node: NodeId) -> PartialRollout:
        """Returns the partial rollout, without its generations if one breaks a limit: the task then starts over."""
        flow = self._run.flow_named(flow_of(partial.task))
        defect = None if flow is None else self._generation_defect(partial, flow)
        if flow is None or defect is None:
            return partial
        flow.counts.refused[defect.limit] += 1
        error = f"handed back: {defect.cause}"
        self._run.events.add(RecordKind.PUSH_REFUSED, node, cause=defect.limit, task=partial.task, error=error)
        return replace(partial, generations=(), continued_tokens=0)

    def note_outcomes(self, node: Node, *, refused: int, outcomes: Sequence[str]) -> None:
        """Notes how many results of a node were refused, and withholds tasks from it if there were too many."""
        accepted = outcomes.count(ACCEPTED)
        pause_s = self._run.shares.judge(node.id, refused=refused, accepted=accepted, now=self._run.clock.now())
        if pause_s:
            returned = sum(flow.return_tasks_of(node.id) for flow in self._run.all_flows)
            self._run.events.add(
                RecordKind.LEASES_WITHHELD, node.id, source=node.facts.name, pause_s=pause_s, tasks=returned
            )
            self._run.nodes_notifier.notify()

    def note_refused_message(self, problem: Exception) -> None:
        """Notes a push that cannot be decoded, for the node whose credential it came with."""
        caller = current_caller()
        self._run.events.add(
            RecordKind.PUSH_REFUSED, caller.name or "unknown", source=caller.holder, error=str(problem)
        )
        for node in nodes_of(self._run, {caller.holder} - {""}):
            self.note_outcomes(node, refused=1, outcomes=())

    def _are_within(self, episodes: Sequence[Episode], parts: Sequence[Trajectories], flows: Iterable[Flow]) -> bool:
        limits = [flow.limits for flow in flows]
        most = min((limit.trajectories for limit in limits), default=MAX_TRAJECTORIES)
        if max(map(len, map(_TRAJECTORIES, episodes)), default=0) > most:
            return False
        policies = {policy for part in parts for policy in part.policies}
        return are_within(parts, limits, self._run.row_limits(policies))

    def _checked(self, episode: Episode, flow: Flow | None) -> Episode:
        if flow is None or not episode.trajectories:
            return episode
        group = flow.open_groups.get(GroupId.unchecked(episode.task.rpartition("/")[0]))
        prompt = group.prompt if group is not None else None
        result = checked(episode, flow.limits, rows=self._run.row_limits(flow.policies), prompt=prompt)
        if isinstance(result.failure, Refusal):
            flow.counts.refused[result.failure.limit] += 1
        return result

    def _generation_defect(self, partial: PartialRollout, flow: Flow) -> Defect | None:
        rows = self._run.row_limits({recorded.policy for recorded in partial.generations})
        defects = (
            generation_defect(recorded, limits=flow.limits, row=rows.get(recorded.policy, RowLimits()))
            for recorded in partial.generations
        )
        return next((defect for defect in defects if defect is not None), None)


class VersionCheck:
    """Rejects results that no policy of the run, or for an evaluation another version, can have written."""

    def __init__(self, run: Run, evaluator: Evaluator) -> None:
        self._run = run
        self._evaluator = evaluator

    def is_possible(self, policies: Iterable[PolicyId], newest: int) -> bool:
        """Returns whether each of these policies can have written tokens with every version up to `newest`."""
        return all(policy in self._run.streams and newest <= self._newest_of(policy) for policy in policies)

    def possible(self, versions: Mapping[PolicyId, Version]) -> Mapping[PolicyId, Version]:
        """Returns the versions that a node reports to serve, at most the newest that nodes may have: tasks issued for a
        version that no trainer has made would be too old for every other node."""
        newest = {policy: self._newest_of(policy) for policy in versions if policy in self._run.streams}
        if all(versions[policy] <= limit for policy, limit in newest.items()):
            return versions
        return {policy: Version(min(version, newest.get(policy, version))) for policy, version in versions.items()}

    def check(self, task: TaskId, policy: PolicyId, versions: Collection[int], *, pushed_by: NodeId) -> None:
        """Checks the versions with which a policy is reported to have written part of a task. Raises: InvalidInput."""
        self._evaluator.check_versions(task, policy, versions)
        stream = self._run.streams.get(policy)
        if stream is None:
            policy_names = ", ".join(self._run.streams)
            problem = InvalidInput(
                f"cannot accept episode {task!r}: this run has no policy {policy!r}; use one of {policy_names}",
                code="episode.unknown_policy",
            )
            raise self._recorded(problem, pushed_by)
        if any(version > self._newest_of(policy) for version in versions):
            problem = InvalidInput(
                f"cannot accept episode {task!r}: no trainer has made the version of {policy!r} that wrote it (the "
                f"trainer is at {stream.version}); fetch the weights again",
                code="episode.unknown_version",
            )
            raise self._recorded(problem, pushed_by)

    def _newest_of(self, policy: PolicyId) -> int:
        """Returns the newest version that nodes may have: a version is served before the step that made it is
        reported, but at most one such version."""
        return self._run.streams[policy].version + 1 if policy in self._run.trainers else MAX_VERSION // 2

    def _recorded(self, problem: InvalidInput, node: NodeId) -> InvalidInput:
        self._run.events.add(RecordKind.PUSH_REFUSED, node, cause=problem.code, error=str(problem))
        return problem
