"""Issued prompts and pushed results, as seen on the wire."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash

from astraflow.contract.ids import FlowId, GroupId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.token_columns import ColumnArray
from astraflow.contract.rollouts.trajectories import Episode, Trajectory
from soak.rules import FlowRules, Invariant, Rules, Violation

ACCEPTED, RETRIED, SUPERSEDED, UNKNOWN = "accepted", "retried", "superseded", "unknown"
FAILED_AT = "failed_"
"""Prefix of the outcome of an accepted failure."""


def counts(outcome: str) -> bool:
    """Returns whether an episode with that outcome is the result of its task; others came too late or are retried."""
    return outcome == ACCEPTED or outcome.startswith(FAILED_AT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Content of an episode that must not change."""

    rows: Mapping[PolicyId, tuple[int, ...]]
    """Identity of each of a policy's trajectories, in order; none for a failure."""
    born: Mapping[PolicyId, Version]
    """Oldest version that generated any of them."""


@dataclass(slots=True)
class Result:
    """Contents pushed for one task, and the accepted one as far as it is known."""

    contents: list[Content] = field(default_factory=list)
    counted: Content | None = None

    @property
    def certain(self) -> Content | None:
        """Returns the accepted content once the task has a result; None while several are possible."""
        if self.counted is not None:
            return self.counted
        return self.contents[0] if len(self.contents) == 1 else None


class Results:
    """Groups by flow and ordinal, and the results of their tasks."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.violations: list[Violation] = []
        self.outcomes: Counter[str] = Counter()
        """Outcomes of all answered episodes."""
        self.leased = 0
        """Leased tasks, counted each time."""
        self._prompts: dict[FlowId, dict[int, str]] = {flow: {} for flow in rules.flows}
        self._results: dict[TaskId, Result] = {}

    def leases(self, tasks: Iterable[Task]) -> None:
        """Records that a node leased these tasks."""
        for task in tasks:
            self.leased += 1
            ordinal = int(task.group.rpartition(":")[2])
            known = self._prompts[task.flow].setdefault(ordinal, task.prompt.id)
            if known != task.prompt.id:
                self._note(Invariant.PROMPTS, f"{task.group} was issued for {known}, and later for {task.prompt.id}")

    def pushed(self, episodes: Iterable[Episode]) -> None:
        """Records that these results were sent to dataflow."""
        for episode in episodes:
            result = self._results.setdefault(episode.task, Result())
            content = content_of(episode)
            if content not in result.contents:
                result.contents.append(content)

    def answered(self, episodes: Sequence[Episode], outcomes: Sequence[str]) -> None:
        """Records dataflow's durable outcomes."""
        for episode, outcome in zip(episodes, outcomes, strict=True):
            self.outcomes[outcome] += 1
            if counts(outcome):
                self._accept(episode)
            elif outcome == UNKNOWN:
                self._note(Invariant.LOST, f"{episode.task} was leased, and its result was called unknown")

    def trained(self, task: TaskId, policy: PolicyId, rows: tuple[int, ...]) -> None:
        """Checks that the trajectories of a task in a batch are its accepted or possibly accepted content."""
        result = self._results.get(task, Result())
        possible = [result.counted] if result.counted is not None else result.contents
        matching = [content for content in possible if content.rows.get(policy) == rows]
        if not matching:
            self._note(Invariant.CONTENT, f"{task}: {policy} is trained on what was not acknowledged for it")
        elif len(matching) == 1:
            result.counted = matching[0]

    def members(self, group: GroupId) -> list[Result]:
        """Returns the results of a group's tasks, member by member."""
        size = self._rules.flows[flow_of(group)].group_size
        return [self._results.get(TaskId(f"{group}/{member}"), Result()) for member in range(size)]

    def groups(self, flow: FlowId) -> list[GroupId]:
        """Returns every group with a leased task, in order."""
        return [GroupId(f"{flow}:{ordinal}") for ordinal in sorted(self._prompts[flow])]

    def check_prompts(self, flow: FlowId, issued: int) -> Iterator[Violation]:
        """Checks that every issued group was seen, and every prompt exactly once in an epoch."""
        prompts, epoch = self._prompts[flow], self._rules.flows[flow].prompts
        unseen = sorted(set(range(issued)) ^ set(prompts))
        if unseen:
            yield Violation(
                promise=Invariant.PROMPTS, message=f"{flow}: of {issued} groups these differ: {unseen[:20]}"
            )
        for begin in range(0, issued, epoch):
            of_epoch = [prompts[ordinal] for ordinal in range(begin, min(begin + epoch, issued)) if ordinal in prompts]
            repeated = [prompt for prompt, count in Counter(of_epoch).items() if count > 1]
            if repeated:
                message = f"{flow}: issued twice in the epoch from group {begin} on: {repeated[:20]}"
                yield Violation(promise=Invariant.PROMPTS, message=message)

    @property
    def refused(self) -> int:
        """Returns the results that were pushed after the same or another one was accepted."""
        return sum(
            count
            for outcome, count in self.outcomes.items()
            if not counts(outcome) and outcome not in (RETRIED, SUPERSEDED)
        )

    def _accept(self, episode: Episode) -> None:
        content, result = content_of(episode), self._results[episode.task]
        if result.counted is not None and result.counted != content:
            self._note(Invariant.TWICE, f"{episode.task}: a second result was accepted, or another one trained on")
        result.counted = content

    def _note(self, promise: Invariant, message: str) -> None:
        self.violations.append(Violation(promise=promise, message=message))


def content_of(episode: Episode) -> Content:
    """Returns an episode's content; a failure has none."""
    rows: dict[PolicyId, tuple[int, ...]] = {}
    born: dict[PolicyId, Version] = {}
    for trajectory in episode.trajectories if episode.failure is None else ():
        policy, oldest = trajectory.policy, trajectory.oldest_version
        if oldest is not None:
            rows[policy] = (*rows.get(policy, ()), identity(trajectory))
            born[policy] = min(born.get(policy, oldest), oldest)
    return Content(rows=rows, born=born)


def identity(trajectory: Trajectory) -> int:
    """Returns 64 bits over all data that training may depend on."""
    spans = "".join(f"/{span.author.value},{span.length},{span.version}" for span in trajectory.spans)
    digest = xxhash.xxh3_64(f"{trajectory.policy}/{trajectory.reward!r}/{trajectory.is_truncated}{spans}".encode())
    digest.update(trajectory.tokens.tobytes())
    digest.update(trajectory.logprobs.tobytes())
    for name, recorded in sorted(recorded_columns(trajectory).items()):
        digest.update(name.encode())
        digest.update(recorded.tobytes())
    return digest.intdigest()


def recorded_columns(trajectory: Trajectory) -> dict[str, ColumnArray]:
    """Returns the recorded columns by name, without the absent ones and the padding that trajectories get which share a
    message with wider ones."""
    columns: dict[str, ColumnArray] = {}
    for column, array in trajectory.token_columns.items():
        width = max(np.flatnonzero((array != column.absent).any(0)) + 1, default=0)
        if width:
            columns[column.value] = np.ascontiguousarray(array[:, :width])
    return columns


def flow_of(group: GroupId) -> FlowId:
    """Returns the flow that issued a group."""
    return FlowId(group.rpartition(":")[0])


def is_too_small(members: Sequence[Result], policy: PolicyId, rules: FlowRules) -> bool:
    """Returns whether too few members have trainable tokens for a policy."""
    with_rows = sum(member.certain is not None and policy in member.certain.rows for member in members)
    return with_rows < min(rules.min_group_size, rules.group_size)
