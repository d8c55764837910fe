"""Trajectories to look at: the latest groups whose nodes attached their text, with what became of them."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from astraflow.archive.samples import find_groups, find_rewards, find_trajectories
from astraflow.contract.groups import Group
from astraflow.contract.ids import GroupId, PolicyId
from astraflow.contract.lookups import (
    GroupPage,
    GroupQuery,
    RewardQuery,
    RewardSpread,
    TrajectoryPage,
    TrajectoryQuery,
)
from astraflow.contract.reports import SampledTrajectory
from astraflow.contract.trajectories import Episode, Trajectory
from astraflow.dataflow.issuing.groups import parse_task_id
from astraflow.dataflow.reporting.archive import Archive
from astraflow.dataflow.serving.stream import BUFFERED
from astraflow.wire.codec_lookups import encode_sample

UNRECORDED = "unrecorded"
"""Fate of a group of which a crash took the note of what became of it."""

_SAMPLE_BYTES = 600
"""What a sample takes besides its texts, roughly."""

_INSERT = "insert into samples values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class Samples:
    """Whole groups with their fate: each trajectory that has a text, and the members that failed beside them.

    A group all of whose members failed is kept too, without any text. The oldest leave when there are more than `limit`
    samples, or more than `limit_bytes` of them.
    """

    def __init__(self, archive: Archive, *, limit: int, limit_bytes: int) -> None:
        self._archive = archive
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._sizes: deque[tuple[int, int]] = deque(
            archive.rows("select ordinal, size_bytes from samples order by ordinal")
        )
        self._size_bytes = sum(size for _, size in self._sizes)
        self._last = self._sizes[-1][0] if self._sizes else 0
        open_groups = archive.rows("select distinct policy, group_id from samples where fate = ?", (BUFFERED,))
        self._open = {(PolicyId(policy), GroupId(group)) for policy, group in open_groups}
        """Shares of groups whose fate may yet change."""

    def add(self, group: Group, fates: Mapping[PolicyId, str], *, at: float) -> None:
        """Keep what there is to look at of a finished group. fates: what became of each policy's share."""
        samples = list(_samples(group, fates, at)) if self._limit else []
        for policy in {sample.policy for sample in samples}:
            # A group that came in again, after a crash before the journal had it, replaces itself.
            self._archive.put("delete from samples where policy = ? and group_id = ?", policy, group.id)
            if fates[policy] == BUFFERED:
                self._open.add((policy, group.id))
        for sample in samples:
            self._keep(sample)
        self._trim()

    def mark(self, policy: PolicyId, group: GroupId, *, fate: str, step: int | None) -> None:
        """What became of a buffered group."""
        if (policy, group) in self._open:
            self._open.remove((policy, group))
            statement = "update samples set fate = ?, step = ? where policy = ? and group_id = ?"
            self._archive.put(statement, fate, step, policy, group)

    def settle(self, waiting: Mapping[PolicyId, Iterable[GroupId]]) -> None:
        """After a restart: what still waits. Of the others, the note of what became of them is lost."""
        still = {(policy, group) for policy, groups in waiting.items() for group in groups}
        for policy, group in self._open - still:
            self.mark(policy, group, fate=UNRECORDED, step=None)

    async def page(self, query: TrajectoryQuery) -> TrajectoryPage:
        """Samples, newest first. Raises: DeadlineExceeded."""
        return await self._archive.read(lambda database: find_trajectories(database, query))

    async def groups(self, query: GroupQuery) -> GroupPage:
        """Their groups, newest first. Raises: DeadlineExceeded."""
        return await self._archive.read(lambda database: find_groups(database, query))

    async def rewards(self, query: RewardQuery) -> RewardSpread:
        """How their rewards are spread. Raises: DeadlineExceeded."""
        return await self._archive.read(lambda database: find_rewards(database, query))

    def _keep(self, sample: SampledTrajectory) -> None:
        self._last += 1
        kept = replace(sample, ordinal=self._last)
        text_bytes = len(kept.prompt_text.encode()) + len(kept.completion_text.encode())
        size_bytes = _SAMPLE_BYTES + text_bytes + len(kept.reference_text.encode())
        self._sizes.append((kept.ordinal, size_bytes))
        self._size_bytes += size_bytes
        columns = _columns(kept, size_bytes)
        self._archive.put(_INSERT, *columns, size_bytes=size_bytes)

    def _trim(self) -> None:
        gone = 0
        while len(self._sizes) > self._limit or self._size_bytes > self._limit_bytes:
            gone, size_bytes = self._sizes.popleft()
            self._size_bytes -= size_bytes
        if gone:
            self._archive.put("delete from samples where ordinal <= ?", gone)


def _samples(group: Group, fates: Mapping[PolicyId, str], at: float) -> Iterator[SampledTrajectory]:
    """In order of the members; ordinals are for whoever keeps them."""
    if not _has_text(group) and any(episode.failure is None for episode in group.episodes):
        return
    reference = str(group.prompt.fields.get("answer", ""))
    for episode in group.episodes:
        for policy, fate in fates.items():
            member = _member(group, episode, policy, fate=fate, at=at)
            if episode.failure is not None:
                yield member
                continue
            for trajectory in episode.trajectories:
                if trajectory.policy == policy and (trajectory.prompt_text or trajectory.completion_text):
                    yield replace(_written(member, trajectory), reference_text=reference)


def _has_text(group: Group) -> bool:
    return any(one.prompt_text or one.completion_text for episode in group.episodes for one in episode.trajectories)


def _member(group: Group, episode: Episode, policy: PolicyId, *, fate: str, at: float) -> SampledTrajectory:
    """A member without anything written: all there is to one that failed."""
    parsed = parse_task_id(episode.task)
    return SampledTrajectory(
        ordinal=0,
        group=group.id,
        task=episode.task,
        flow=group.flow,
        policy=policy,
        node=episode.node,
        at=at,
        step=None,
        fate=fate,
        reward=0.0,
        prompt_text="",
        completion_text="",
        reference_text="",
        tokens=0,
        model_tokens=0,
        spans=(),
        is_truncated=False,
        member=parsed[1] if parsed else 0,
        attempt=episode.attempt,
        duration_s=episode.duration_s,
        failure=episode.failure,
    )


def _written(member: SampledTrajectory, trajectory: Trajectory) -> SampledTrajectory:
    return replace(
        member,
        reward=trajectory.reward,
        prompt_text=trajectory.prompt_text,
        completion_text=trajectory.completion_text,
        tokens=len(trajectory.tokens),
        model_tokens=trajectory.model_tokens,
        spans=trajectory.spans,
        is_truncated=trajectory.is_truncated,
        metrics=trajectory.metrics,
        text_ends=trajectory.text_ends,
        span_s=trajectory.span_s,
    )


def _columns(sample: SampledTrajectory, size_bytes: int) -> tuple[object, ...]:
    """A row: what is asked for, or may change, in columns; the rest as a message, made in the writer's thread."""
    rest = replace(sample, prompt_text="", completion_text="", fate="", step=None)
    return (
        sample.ordinal,
        sample.policy,
        sample.flow,
        sample.group,
        sample.task,
        sample.node,
        sample.at,
        sample.step,
        sample.fate,
        sample.reward if sample.failure is None else None,
        sample.is_truncated,
        sample.failure.message if sample.failure is not None else None,
        size_bytes,
        lambda: encode_sample(rest).SerializeToString(),
        sample.prompt_text,
        sample.completion_text,
    )
