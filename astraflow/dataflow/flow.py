"""One flow: issues groups, accepts results, and passes finished groups to admission."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeAlias

from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, TaskId, Version, ordinal_of
from astraflow.contract.nodes import FlowSpec
from astraflow.contract.plugins import PluginSlot
from astraflow.contract.rollouts.partial_rollouts import PartialRollout
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode, Trajectory
from astraflow.contract.values import Json
from astraflow.dataflow.admission.admitter import FAILED, Admission, Admitter
from astraflow.dataflow.admission.group_scoring import GROUP_REWARD_FAILED, GroupScoring, without_unsampled_texts
from astraflow.dataflow.admission.limits import ResultLimits
from astraflow.dataflow.issuing.groups import OpenGroup, UnfinishedTask, parse_task_id, task_id
from astraflow.dataflow.issuing.issuer import GroupSource
from astraflow.dataflow.issuing.leases import Leases
from astraflow.dataflow.issuing.partial_rollouts import PartialRollouts
from astraflow.dataflow.issuing.patience import Durations
from astraflow.dataflow.outcomes import (
    ACCEPTED,
    DUPLICATE,
    HANDED_BACK,
    LATE,
    NOT_COUNTED,
    RETRIED,
    SUPERSEDED,
    UNKNOWN,
    CompleteGroup,
    PushResult,
    failed_outcome,
)
from astraflow.dataflow.plugin_slot import SlotPlugins
from astraflow.dataflow.storage.prompt_rows import RowProvider

AnswerSource: TypeAlias = Callable[[Task, Version], Trajectory]
"""Returns the answer of the dataset to a task as a trajectory. Raises: InvalidInput when there is none."""


@dataclass(slots=True)
class FlowCounts:
    """Groups and episodes of one flow since the run began. Invariant: `issued == open + admitted + sum(dropped)`."""

    admitted: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    episodes: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    """Trajectories of accepted episodes, by ending."""
    leases_expired: int = 0
    tasks_returned: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Results and handed-back tokens of nodes that broke a limit, by limit (`Defect.limit`)."""


class Flow:
    """Open groups of one flow, and counts of the finished groups."""

    def __init__(
        self,
        spec: FlowSpec,
        policies: tuple[PolicyId, ...],
        *,
        judges: tuple[PolicyId, ...] = (),
        issuer: GroupSource,
        leases: Leases,
        admitter: Admitter,
        limits: ResultLimits,
        max_attempts: int,
        waits_when_full: bool,
        answers: AnswerSource | None = None,
        group_scoring: GroupScoring | None = None,
    ) -> None:
        self.spec = spec
        self.policies = policies
        self.served_policies = tuple(dict.fromkeys((*policies, *judges)))
        """Policies that a node needs for a task: those of the workflow, and those that the reward asks."""
        self.waits_when_full = waits_when_full
        """True if the flow waits for the stalled trainer of one policy while another policy has headroom."""
        self.answers = answers
        """Answers of the dataset, which dataflow itself makes episodes of; None if nodes run the tasks."""
        self.group_scoring = group_scoring
        """Group reward that a complete group waits for before its admission; None: it is admitted at once."""
        self._awaiting_scores: set[GroupId] = set()
        self.leases = leases
        self.limits = limits
        """Limits of the results of nodes."""
        self.counts = FlowCounts()
        self.open_groups: dict[GroupId, OpenGroup] = {}
        self.partial_rollouts = PartialRollouts()
        self.durations = Durations()
        """Times from lease to result of the latest episodes."""
        self.is_paused = False
        self._issuer = issuer
        self._unusable_prompts = 0
        self._admitter = admitter
        self._max_attempts = max_attempts

    @property
    def id(self) -> FlowId:
        """Name of the flow in the recipe."""
        return self.spec.id

    @property
    def issued(self) -> int:
        """Number of groups issued since the run began."""
        return self._issuer.issued

    @property
    def version(self) -> Version:
        """Newest version that every policy of the flow has reached."""
        return self._issuer.version

    def take_unusable(self) -> list[str]:
        """Returns the causes of prompts that were left out since the last call."""
        causes = list(self._issuer.unusable)
        self._issuer.unusable.clear()
        self._unusable_prompts += len(causes)
        return causes

    @property
    def plugin_slots(self) -> dict[PluginSlot, SlotPlugins[Any]]:
        """Slots whose plugins may be changed during the run."""
        selector = {} if self._issuer.slot_plugins is None else {PluginSlot.SELECTOR: self._issuer.slot_plugins}
        return {**selector, PluginSlot.FILTERS: self._admitter.slot_plugins}

    def issue(
        self, *, served: Mapping[PolicyId, Version] | None = None, surplus_policies: frozenset[PolicyId] = frozenset()
    ) -> OpenGroup:
        """Issues one group for a node that serves these versions, and queues its tasks.

        surplus_policies: policies whose share of the group will be dropped.
        """
        versions = {policy: served[policy] for policy in self.policies if policy in served} if served else {}
        group = self._issuer.next_group()
        group.issued_for_versions, group.surplus_policies = versions, surplus_policies
        self.open_groups[group.id] = group
        self.leases.add(group.open_tasks())
        return group

    def lease(
        self, node: NodeId, capacity: int, *, served: Mapping[PolicyId, Version], now: float, remaining_bytes: int
    ) -> list[Task]:
        """Leases up to `capacity` queued tasks to a node, except tasks that it would begin with older weights than
        intended.

        The last task may exceed `remaining_bytes` with its partial rollout.
        """
        tasks: list[Task] = []

        def suitable(queue: Iterable[TaskId]) -> Iterator[TaskId]:
            nonlocal remaining_bytes
            for group_id, queued in groupby(queue, key=lambda task: task.rpartition("/")[0]):
                group = self.open_groups[GroupId.unchecked(group_id)]
                for task in queued if group.may_start_with(served) else ():
                    if remaining_bytes <= 0:
                        return
                    partial = self.partial_rollouts.get(task)
                    remaining_bytes -= partial.size_bytes if partial else 0
                    tasks.append(group.task(task, int(task[len(group_id) + 1 :]), partial))
                    yield task

        self.leases.lease(node, capacity, now=now, suitable=suitable)
        return tasks

    def hand_back(
        self, partial: PartialRollout, node: NodeId, oldest_trainable_versions: Mapping[PolicyId, Version]
    ) -> str:
        """Requeues a task that its node does not finish at the front, with the tokens written so far.

        oldest_trainable_versions: see `PartialRollouts.store`. A hand-back does not count as a failed attempt.
        """
        member_location = self._locate(partial.task)
        if member_location is None:
            return UNKNOWN
        group, member = self.open_groups.get(member_location[0]), member_location[1]
        is_current = group is not None and member not in group.episodes and group.attempt(member) == partial.attempt
        if not is_current or self.leases.holder(partial.task) != node:
            self.partial_rollouts.counts[LATE] += 1
            return LATE
        self.leases.requeue(partial.task)
        self.counts.tasks_returned += 1
        if partial.tokens:
            self.partial_rollouts.store(partial, oldest_trainable_versions)
        return HANDED_BACK

    def drop_stale_partial_rollouts(
        self, oldest_trainable_versions: Mapping[PolicyId, Version]
    ) -> list[UnfinishedTask]:
        """Drops partial rollouts that are too old to be trained on by now; returns their tasks."""
        return [self.unfinished_task(task) for task in self.partial_rollouts.drop_stale(oldest_trainable_versions)]

    def unfinished_task(self, task: TaskId) -> UnfinishedTask:
        """Returns the state of a task that was issued and has no result."""
        group, member = self._open_member(task)
        return UnfinishedTask(
            task=task, group=group.id, attempt=group.attempt(member), partial=self.partial_rollouts.get(task)
        )

    def accept(
        self,
        group_id: GroupId,
        episodes: Sequence[Episode],
        versions: Mapping[PolicyId, Version],
        *,
        may_push: Callable[[TaskId], bool] | None = None,
    ) -> PushResult:
        """Accepts episodes of one group: the first result of a task counts, whichever node holds the lease by now.

        versions: the trainers' current versions. may_push: returns whether the sender may push a result of an open
        task; if not, the result is late, and the task's holder continues undisturbed. None: it may.
        """
        group = self.open_groups.get(group_id)
        if group is None:
            ordinal = ordinal_of(group_id)
            was_issued = ordinal is not None and ordinal < self._issuer.issued
            outcomes = [LATE if was_issued and parse_task_id(episode.task) else UNKNOWN for episode in episodes]
        else:
            outcomes = [self._accept(episode, group, may_push) for episode in episodes]
        self.counts.episodes.update(outcomes)
        counted = [episode for episode, outcome in zip(episodes, outcomes, strict=True) if outcome not in NOT_COUNTED]
        self.leases.complete([episode.task for episode in counted])
        complete_group = None
        if group is not None and counted and group.is_complete:
            if self._is_scored(group):
                self.await_scores(group_id)
            else:
                complete_group = self._finish(group, versions)
        return PushResult(group=group_id, outcomes=outcomes, counted_episodes=counted, complete_group=complete_group)

    def await_scores(self, group: GroupId) -> None:
        """Queues a complete group for its group reward; it stays open until then."""
        if self.group_scoring is not None:
            self._awaiting_scores.add(group)
            self.group_scoring.waiting.put_nowait(group)

    def is_awaiting_scores(self, group: GroupId) -> bool:
        """Returns whether a group is queued for its group reward, or being scored."""
        return group in self._awaiting_scores

    def finish_scored(
        self, group_id: GroupId, episodes: Sequence[Episode] | None, versions: Mapping[PolicyId, Version]
    ) -> CompleteGroup:
        """Decides about a group after its group reward. episodes: with new rewards; None drops the group."""
        self._awaiting_scores.discard(group_id)
        group = self.open_groups[group_id]
        final = without_unsampled_texts(group.to_group().episodes) if episodes is None else episodes
        group.episodes = dict(zip(sorted(group.episodes), final, strict=True))
        refusal = GROUP_REWARD_FAILED if episodes is None else ""
        return self._finish(group, versions, refusal=refusal)

    def advance(self, version: Version) -> None:
        """Sets the newest version that every policy of the flow has reached."""
        self._issuer.advance(version)

    @property
    def rows(self) -> tuple[str, RowProvider] | None:
        """Name and provider of the rows stored in addition to the flow's state, None without rows."""
        return self._issuer.rows

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of the selector, the filters and the group reward, named `kind.metric`."""
        scoring = self.group_scoring.metrics() if self.group_scoring else {}
        unusable = {"unusable_prompts": float(self._unusable_prompts)} if self._unusable_prompts else {}
        return {**self._issuer.metrics(), **self._admitter.metrics(), **scoring, **unusable}

    def expire(self, *, now: float) -> list[tuple[TaskId, NodeId | None]]:
        """Returns tasks of expired leases to the queue; returns them with their holders."""
        expired = self.leases.expire(now=now)
        self.counts.leases_expired += sum(node is not None for _, node in expired)
        return expired

    def expire_tasks_of(self, node: NodeId) -> int:
        """Returns the tasks of an unresponsive node to the queue. Returns their number."""
        expired = len(self.leases.return_tasks_of(node))
        self.counts.leases_expired += expired
        return expired

    def reclaim(self, tasks: Sequence[TaskId]) -> None:
        """Returns tasks that nodes keep too long to the queue."""
        self.leases.reclaim(tasks)
        self.counts.leases_expired += len(tasks)

    def return_tasks_of(self, node: NodeId) -> int:
        """Returns the tasks of a node that left to the queue. Returns their number."""
        returned = len(self.leases.return_tasks_of(node))
        self.counts.tasks_returned += returned
        return returned

    def abandon(self) -> list[OpenGroup]:
        """Discards the open groups and returns them. Later results of their tasks do not count."""
        abandoned = list(self.open_groups.values())
        for group in abandoned:
            tasks = group.open_tasks()
            self.leases.complete(tasks)
            for task in tasks:
                self.partial_rollouts.settle(task, continued_tokens=0)
        self.open_groups.clear()
        return abandoned

    def count_admission(self, admission: Admission) -> None:
        """Counts a finished group as admitted or dropped."""
        if admission.admitted:
            self.counts.admitted += 1
        else:
            self.counts.dropped[next(iter(admission.refused.values()), FAILED)] += 1

    def restore(
        self, groups: Iterable[OpenGroup], partials: Iterable[PartialRollout], *, now: float, grace_s: float
    ) -> None:
        """Restores the groups that were open when the service stopped; nodes may still run their tasks.

        partials: of all flows.
        """
        for group in groups:
            self.open_groups[group.id] = group
            self.leases.add_unconfirmed(group.open_tasks(), now=now, grace_s=grace_s)
        self.partial_rollouts.restore(
            partial for partial in partials if partial.task.rpartition("/")[0] in self.open_groups
        )

    def state_dict(self) -> dict[str, Json]:
        """Returns cursors and counts."""
        counts = self.counts
        return {
            "issuer": self._issuer.state_dict(),
            "filters": self._admitter.state_dict(),
            "is_paused": self.is_paused,
            "admitted": counts.admitted,
            "dropped": dict(counts.dropped),
            "episodes": dict(counts.episodes),
            "endings": dict(counts.endings),
            "leases_expired": counts.leases_expired,
            "tasks_returned": counts.tasks_returned,
            "refused": dict(counts.refused),
            "partial_rollouts": self.partial_rollouts.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state."""
        self._issuer.load_state_dict(state["issuer"])
        self._admitter.load_state_dict(state["filters"])
        self.is_paused = state["is_paused"]
        self.counts = FlowCounts(
            admitted=state["admitted"],
            dropped=Counter(state["dropped"]),
            episodes=Counter(state["episodes"]),
            endings=Counter(state.get("endings", {})),
            leases_expired=state["leases_expired"],
            tasks_returned=state["tasks_returned"],
            refused=Counter(state.get("refused", {})),
        )
        self.partial_rollouts.load_state_dict(state["partial_rollouts"])

    def _accept(self, episode: Episode, group: OpenGroup, may_push: Callable[[TaskId], bool] | None) -> str:
        """Accepts an episode of an open group; returns its outcome."""
        task = episode.task
        number = task[len(group.id) + 1 :]
        member = int(number) if number.isdecimal() else group.size
        if member >= group.size or task != f"{group.id}/{member}":  # "0/00" would leave "0/0" in the queue
            return UNKNOWN
        if member in group.episodes:
            return LATE if group.is_complete and not self._is_scored(group) else DUPLICATE
        if may_push is not None and not may_push(task):
            return LATE
        failure = episode.failure
        if failure is not None and failure.is_retried:
            if self._is_superseded(episode, group, member):
                return SUPERSEDED
            if group.count_failed_attempt(member, max_attempts=self._max_attempts):
                self.partial_rollouts.settle(task, continued_tokens=0)
                self.leases.requeue(task)
                return RETRIED
        self.partial_rollouts.settle(task, continued_tokens=episode.continued_tokens if failure is None else 0)
        group.episodes[member] = episode
        return ACCEPTED if failure is None else failed_outcome(failure.boundary)

    def _is_scored(self, group: OpenGroup) -> bool:
        """Returns whether a complete group stays open for its group reward."""
        return self.group_scoring is not None and group.succeeded > 0

    def _finish(self, group: OpenGroup, versions: Mapping[PolicyId, Version], *, refusal: str = "") -> CompleteGroup:
        """Decides about a complete group. refusal: reason for which all its policies are refused."""
        del self.open_groups[group.id]
        self._issuer.observe(group)
        finished = group.to_group()
        if refusal:
            admission = Admission(admitted={}, refused=dict.fromkeys(self.policies, refusal))
        else:
            admission = self._admitter.admit(finished, versions)
        return CompleteGroup(
            group=finished,
            admission=admission,
            surplus_policies=group.surplus_policies,
            issued_at=group.issued_at,
        )

    def _is_superseded(self, episode: Episode, group: OpenGroup, member: int) -> bool:
        """Returns whether a failure belongs to a past attempt; counting it would cost the current attempt a try."""
        holder = self.leases.holder(episode.task)
        return episode.attempt != group.attempt(member) or holder not in (None, episode.node)

    def _open_member(self, task: TaskId) -> tuple[OpenGroup, int]:
        """Returns group and member of a task that was issued and has no result."""
        group, _, member = task.rpartition("/")
        return self.open_groups[GroupId.unchecked(group)], int(member)

    def _locate(self, task: TaskId) -> tuple[GroupId, int] | None:
        """Returns group and member of a task of this flow, None if the flow never issued it."""
        parsed = parse_task_id(task)
        ordinal = ordinal_of(parsed[0]) if parsed else None
        if parsed is None or ordinal is None or ordinal >= self._issuer.issued or task != task_id(*parsed):
            return None
        group = self.open_groups.get(parsed[0])
        return None if group is not None and parsed[1] >= group.size else parsed
