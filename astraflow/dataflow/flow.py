"""One flow: issue groups, take results in, hand finished groups to admission."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.nodes import FlowSpec
from astraflow.contract.partials import Partial
from astraflow.contract.plugins import Seam
from astraflow.contract.tasks import Task
from astraflow.contract.trajectories import Episode
from astraflow.contract.values import Json
from astraflow.dataflow.admitting.admitter import FAILED, Admission, Admitter
from astraflow.dataflow.fates import (
    ACCEPTED,
    DUPLICATE,
    HANDED_BACK,
    LATE,
    RETRIED,
    SUPERSEDED,
    UNKNOWN,
    Taken,
    failed_at,
)
from astraflow.dataflow.issuing.groups import OpenGroup, Unfinished, ordinal_of, parse_task_id
from astraflow.dataflow.issuing.issuer import GroupSource
from astraflow.dataflow.issuing.leases import Leases
from astraflow.dataflow.issuing.prefixes import Prefixes
from astraflow.dataflow.plugged import Plugged
from astraflow.dataflow.rows import RowKeeper


@dataclass(slots=True)
class FlowCounts:
    """Groups and episodes of one flow since the run began. `issued == open + admitted + sum(dropped)` always."""

    admitted: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    episodes: Counter[str] = field(default_factory=Counter)
    leases_expired: int = 0
    tasks_returned: int = 0


class Flow:
    """The groups of one flow that are out, and what became of the others."""

    def __init__(
        self,
        spec: FlowSpec,
        policies: tuple[PolicyId, ...],
        *,
        issuer: GroupSource,
        leases: Leases,
        admitter: Admitter,
        reward_range: tuple[float, float],
        max_attempts: int,
        waits_when_full: bool,
    ) -> None:
        self.spec = spec
        self.policies = policies
        self.waits_when_full = waits_when_full
        """Whether it waits for the stalled trainer of one policy while another has room."""
        self.leases = leases
        self.reward_range = reward_range
        """Lowest and highest reward that a trajectory can have."""
        self.counts = FlowCounts()
        self.open: dict[GroupId, OpenGroup] = {}
        self.prefixes = Prefixes()
        self.is_paused = False
        self._issuer = issuer
        self._admitter = admitter
        self._max_attempts = max_attempts

    @property
    def id(self) -> FlowId:
        """Its name in the recipe."""
        return self.spec.id

    @property
    def issued(self) -> int:
        """Groups issued since the run began."""
        return self._issuer.issued

    @property
    def version(self) -> Version:
        """That every policy of the flow has reached."""
        return self._issuer.version

    @property
    def seams(self) -> dict[Seam, Plugged[Any]]:
        """Where its plug-ins may be changed."""
        selector = {} if self._issuer.plugged is None else {Seam.SELECTOR: self._issuer.plugged}
        return {**selector, Seam.FILTERS: self._admitter.plugged}

    def issue(
        self, *, served: Mapping[PolicyId, Version] | None = None, spare_for: frozenset[PolicyId] = frozenset()
    ) -> OpenGroup:
        """Issue one group for a node that serves these versions; its tasks are queued.

        spare_for: policies whose share is to be dropped.
        """
        versions = {policy: served[policy] for policy in self.policies if policy in served} if served else {}
        group = self._issuer.next_group()
        group.served, group.spare_for = versions, spare_for
        self.open[group.id] = group
        self.leases.add(group.open_tasks())
        return group

    def lease(
        self, node: NodeId, capacity: int, *, served: Mapping[PolicyId, Version], now: float, room_bytes: int
    ) -> list[Task]:
        """Hand up to `capacity` queued tasks to a node, none that it would begin with older weights than intended.

        The last of them may pass the room for what was handed back.
        """
        tasks: list[Task] = []

        def take(task: TaskId) -> bool:
            nonlocal room_bytes
            group, member = self._member(task)
            if room_bytes <= 0 or not group.may_begin_at(served):
                return False
            partial = self.prefixes.get(task)
            room_bytes -= partial.size_bytes if partial else 0
            tasks.append(group.task(task, member, partial))
            return True

        self.leases.lease(node, capacity, now=now, suits=take)
        return tasks

    def hand_back(self, partial: Partial, node: NodeId, floors: Mapping[PolicyId, Version]) -> str:
        """The node that holds a task does not finish it: to the front of the queue with what was written so far.

        floors: see `Prefixes.keep`. It is no failed try: the attempt stays what it was.
        """
        place = self._place(partial.task)
        if place is None:
            return UNKNOWN
        group, member = self.open.get(place[0]), place[1]
        is_present = group is not None and member not in group.episodes and group.attempt(member) == partial.attempt
        if not is_present or self.leases.holder(partial.task) != node:
            self.prefixes.counts[LATE] += 1
            return LATE
        self.leases.give_back(partial.task)
        self.counts.tasks_returned += 1
        if partial.tokens:
            self.prefixes.keep(partial, floors)
        return HANDED_BACK

    def drop_stale_prefixes(self, floors: Mapping[PolicyId, Version]) -> list[Unfinished]:
        """Versions have moved on: what was handed back and is too old by now is forgotten. Tells whose it was."""
        return [self.unfinished(task) for task in self.prefixes.drop_stale(floors)]

    def unfinished(self, task: TaskId) -> Unfinished:
        """What is known of a task that was issued and has no result."""
        group, member = self._member(task)
        return Unfinished(task=task, group=group.id, attempt=group.attempt(member), partial=self.prefixes.get(task))

    def take(self, episode: Episode, versions: Mapping[PolicyId, Version]) -> Taken:
        """A node hands in an episode: the first result of a task counts, whoever holds the lease by now.

        versions: of the trainers now.
        """
        taken = self._take(episode, versions)
        self.counts.episodes[taken.fate] += 1
        return taken

    def is_out(self, task: TaskId) -> bool:
        """Whether a task was issued and has no result."""
        place = self._place(task)
        group = self.open.get(place[0]) if place else None
        return place is not None and group is not None and place[1] not in group.episodes

    def refuse_foreign(self) -> Taken:
        """A result from a node that never held the task: whoever holds it goes on undisturbed."""
        self.counts.episodes[LATE] += 1
        return Taken(fate=LATE)

    def advance(self, version: Version) -> None:
        """Every policy of the flow has reached this version."""
        self._issuer.advance(version)

    @property
    def rows(self) -> tuple[str, RowKeeper] | None:
        """Under which name, and by whom, rows are kept beside the flow's state, if any."""
        return self._issuer.rows

    def metrics(self) -> dict[str, float]:
        """What selector and filters say of themselves, as `kind.metric`."""
        return {**self._issuer.metrics(), **self._admitter.metrics()}

    def expire(self, *, now: float) -> list[tuple[TaskId, NodeId | None]]:
        """Return tasks of silent nodes to the queue; tells which, and who held them."""
        expired = self.leases.expire(now=now)
        self.counts.leases_expired += sum(node is not None for _, node in expired)
        return expired

    def expire_all_of(self, node: NodeId) -> int:
        """A node is silent: its tasks go back to the queue. Returns how many."""
        expired = len(self.leases.return_all_of(node))
        self.counts.leases_expired += expired
        return expired

    def return_all_of(self, node: NodeId) -> int:
        """A node left: its tasks go back to the queue. Returns how many."""
        returned = len(self.leases.return_all_of(node))
        self.counts.tasks_returned += returned
        return returned

    def abandon(self) -> list[OpenGroup]:
        """Forget the groups that are out; tells which. What nodes still send of them counts for nothing."""
        abandoned = list(self.open.values())
        for group in abandoned:
            for task in group.open_tasks():
                self.leases.complete(task)
                self.prefixes.settle(task, continued_tokens=0)
        self.open.clear()
        return abandoned

    def count_admission(self, admission: Admission) -> None:
        """A finished group went to these streams, or to none."""
        if admission.kept:
            self.counts.admitted += 1
        else:
            self.counts.dropped[next(iter(admission.refused.values()), FAILED)] += 1

    def restore(self, groups: Iterable[OpenGroup], partials: Iterable[Partial], *, now: float, grace_s: float) -> None:
        """Take up the groups that were out when the service stopped; nodes may still run their tasks.

        partials: of all flows.
        """
        for group in groups:
            self.open[group.id] = group
            self.leases.add_in_doubt(group.open_tasks(), now=now, grace_s=grace_s)
        self.prefixes.restore(partial for partial in partials if partial.task.rpartition("/")[0] in self.open)

    def state_dict(self) -> dict[str, Json]:
        """Cursor and counts."""
        counts = self.counts
        return {
            "issuer": self._issuer.state_dict(),
            "filters": self._admitter.state_dict(),
            "is_paused": self.is_paused,
            "admitted": counts.admitted,
            "dropped": dict(counts.dropped),
            "episodes": dict(counts.episodes),
            "leases_expired": counts.leases_expired,
            "tasks_returned": counts.tasks_returned,
            "prefixes": self.prefixes.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._issuer.load_state_dict(state["issuer"])
        self._admitter.load_state_dict(state["filters"])
        self.is_paused = state["is_paused"]
        self.counts = FlowCounts(
            admitted=state["admitted"],
            dropped=Counter(state["dropped"]),
            episodes=Counter(state["episodes"]),
            leases_expired=state["leases_expired"],
            tasks_returned=state["tasks_returned"],
        )
        self.prefixes.load_state_dict(state["prefixes"])

    def _take(self, episode: Episode, versions: Mapping[PolicyId, Version]) -> Taken:
        place = self._place(episode.task)
        if place is None:
            return Taken(fate=UNKNOWN)
        group, member = self.open.get(place[0]), place[1]
        if group is None:
            return Taken(fate=LATE)
        if member in group.episodes:
            return Taken(fate=DUPLICATE)
        if episode.failure is not None and episode.failure.boundary.is_infrastructure:
            if self._is_superseded(episode, group, member):
                return Taken(fate=SUPERSEDED)
            if group.may_retry(member, max_attempts=self._max_attempts):
                self.prefixes.settle(episode.task, continued_tokens=0)
                self.leases.give_back(episode.task)
                return Taken(fate=RETRIED)
        self.leases.complete(episode.task)
        self.prefixes.settle(episode.task, continued_tokens=0 if episode.failure else episode.continued_tokens)
        group.episodes[member] = episode
        fate = ACCEPTED if episode.failure is None else failed_at(episode.failure.boundary)
        if not group.is_complete:
            return Taken(fate=fate, group=group.id, counted=episode)
        del self.open[group.id]
        self._issuer.observe(group)
        finished = group.finished()
        admission = self._admitter.admit(finished, versions)
        return Taken(
            fate=fate,
            group=group.id,
            counted=episode,
            finished=finished,
            admission=admission,
            spare_for=group.spare_for,
        )

    def _is_superseded(self, episode: Episode, group: OpenGroup, member: int) -> bool:
        """Whether a failure is of a try that is over: to count it would take a try from the one that goes on."""
        holder = self.leases.holder(episode.task)
        return episode.attempt != group.attempt(member) or holder not in (None, episode.node)

    def _member(self, task: TaskId) -> tuple[OpenGroup, int]:
        """Of a task that was issued and has no result."""
        group, _, member = task.rpartition("/")
        return self.open[GroupId.known(group)], int(member)

    def _place(self, task: TaskId) -> tuple[GroupId, int] | None:
        """Group and member of a task that this flow did issue."""
        parsed = parse_task_id(task)
        ordinal = ordinal_of(parsed[0]) if parsed else None
        if parsed is None or ordinal is None or ordinal >= self._issuer.issued:
            return None
        group = self.open.get(parsed[0])
        return None if group is not None and parsed[1] >= group.size else parsed
