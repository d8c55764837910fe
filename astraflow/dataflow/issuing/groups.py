"""Open groups: which members have a result, which failed, and which are retried."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from astraflow.contract.ids import FlowId, GroupId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.partial_rollouts import PartialRollout
from astraflow.contract.rollouts.tasks import Group, Prompt, Task
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.wire.codecs.data import new_task


@dataclass(slots=True)
class OpenGroup:
    """One issued group until every member has a result that counts.

    An infrastructure failure of a member is retried up to `max_attempts` times, always in a fresh environment: an
    attempt is a new run of the workflow, which creates its own (`raas.tasks.runner`), and nothing that the failed
    attempt wrote is kept. After that, like any other failure, the member is masked: it has no trajectories, so it is
    left out of the group's mean and spread (`admission.routing`) and never scored zero. A group with too few other
    members is dropped (`admission.admitter`).
    """

    id: GroupId
    flow: FlowId
    prompt: Prompt
    prompt_index: int
    """Index of the prompt in its dataset."""
    size: int
    surplus_policies: frozenset[PolicyId] = frozenset()
    """Policies whose streams were full when the group was issued: their share is not counted there and is dropped."""
    issued_for_versions: Mapping[PolicyId, Version] = field(default_factory=dict)
    """Versions served by the node that the group was issued for: no member may begin with an older one."""
    issued_at: float | None = None
    """Clock time of the issue; None after a restart of dataflow. Seconds."""
    pinned: Mapping[PolicyId, Version] = field(default_factory=dict)
    """See `Task.pinned`."""
    attempts: dict[int, int] = field(default_factory=dict)
    """Failed attempts by member; members without failures are absent."""
    episodes: dict[int, Episode] = field(default_factory=dict)

    def task(self, task: TaskId, member: int, partial: PartialRollout | None) -> Task:
        """Returns the task of one member at its current attempt. partial: what an earlier node handed back."""
        resume_from = partial.generations if partial else ()
        return new_task(task, self.id, self.flow, member, self.attempt(member), self.prompt, self.pinned, resume_from)

    def may_start_with(self, served: Mapping[PolicyId, Version]) -> bool:
        """Returns whether a node that serves these versions begins the group with nothing older than intended."""
        return all(served.get(policy, version) >= version for policy, version in self.issued_for_versions.items())

    def attempt(self, member: int) -> int:
        """Returns the number of a member's current attempt, from 0."""
        return self.attempts.get(member, 0)

    def open_tasks(self) -> list[TaskId]:
        """Returns the tasks of the members without a result."""
        return [task_id(self.id, member) for member in range(self.size) if member not in self.episodes]

    def count_failed_attempt(self, member: int, *, max_attempts: int) -> bool:
        """Counts an infrastructure failure of a member; returns whether another attempt remains."""
        self.attempts[member] = self.attempt(member) + 1
        return self.attempts[member] < max_attempts

    @property
    def is_complete(self) -> bool:
        """True if every member has a result."""
        return len(self.episodes) == self.size

    @property
    def succeeded(self) -> int:
        """Number of members with trajectories."""
        return sum(episode.failure is None for episode in self.episodes.values())

    def to_group(self) -> Group:
        """Returns the group for admission, members in order."""
        episodes = tuple(self.episodes[member] for member in sorted(self.episodes))
        return Group(id=self.id, flow=self.flow, prompt=self.prompt, episodes=episodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedTask:
    """State of a member without a result that must survive a restart."""

    task: TaskId
    group: GroupId
    attempt: int
    partial: PartialRollout | None


def task_id(group: GroupId, member: int) -> TaskId:
    return TaskId.unchecked(f"{group}/{member}")


def parse_task_id(task: TaskId) -> tuple[GroupId, int] | None:
    """Returns group and member of a task id `flow:ordinal/member`, None for any other text."""
    group, slash, member = task.rpartition("/")
    return (GroupId.unchecked(group), int(member)) if slash and group and member.isdecimal() else None


def flow_of(task_id: TaskId) -> FlowId:
    """Returns the flow of a task id `flow:ordinal/member`; for any other text, a name that no flow has."""
    return flow_of_group(task_id.rpartition("/")[0])


@lru_cache(maxsize=4096)
def flow_of_group(group: str) -> FlowId:
    """Returns the flow of a group; cached, because the members of a group arrive together."""
    return FlowId.unchecked(group.rpartition(":")[0])
