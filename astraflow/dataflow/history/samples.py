"""Sampled trajectories for inspection: groups whose nodes attached texts, with their outcomes; some of each step, and
the latest."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from math import isfinite
from typing import Any

from astraflow.archive.samples import find_groups, find_rewards, find_sample_index, find_trajectories
from astraflow.contract.ids import FlowId, GroupId, PolicyId
from astraflow.contract.reports.queries import (
    GroupPage,
    GroupQuery,
    RewardHistogram,
    RewardQuery,
    SampleIndex,
    SampleIndexQuery,
    TrajectoryPage,
    TrajectoryQuery,
)
from astraflow.contract.reports.report import EVALUATED, SampledTrajectory
from astraflow.contract.rollouts.agent_calls import AgentCall
from astraflow.contract.rollouts.tasks import Group, prompt_position
from astraflow.contract.rollouts.trajectories import Episode, Trajectories, Trajectory
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.history.sample_retention import GroupKey, SampleRetention, Series, StoredGroup
from astraflow.dataflow.issuing.groups import parse_task_id
from astraflow.dataflow.serving.stream import BUFFERED
from astraflow.wire.codecs.agent_calls import encode_calls
from astraflow.wire.codecs.converter import to_message
from astraflow.wire.pb import control_plane_pb2 as pb

UNRECORDED = "unrecorded"
"""Outcome of a group whose outcome was lost in a crash."""

MAX_PROMPT_FIELDS = 64 * 1024
"""Longest fields of a prompt, as JSON, that samples of its group have. Characters."""

_SAMPLE_BYTES = 600
"""Approximate size of a sample without its texts. Bytes."""

_HOP_BYTES = 40
"""Approximate size of a hop without its texts. Bytes."""

_TOKEN_BYTES = 7
"""Approximate size of the end and the log-probability of a token on disk. Bytes."""

_ID_BYTES = 3
"""Approximate size of the id of a token on disk. Bytes."""

_TOKEN_MEMORY_BYTES = 72
"""Size of a token, its end and its log-probability in memory, as Python numbers. Bytes."""

_COLUMN_NAMES = (
    "ordinal, policy, flow, group_id, task, node, at, step, outcome, reward, is_truncated, failure, size_bytes, body, "
    "prompt_text, completion_text, ending, role, reward_terms, tokens_body, call_outcomes, calls_body"
)
_INSERT = f"insert into samples ({_COLUMN_NAMES}) values ({', '.join('?' * len(_COLUMN_NAMES.split(',')))})"  # noqa: S608 (constants)


class TrajectorySamples:
    """Stores whole groups with their outcomes: each trajectory with a text, and the failed members.

    A group whose members all failed is stored too, without texts. Beyond `limit` samples or `limit_bytes`, groups are
    deleted: see `sample_retention`.
    """

    def __init__(self, archive: Archive, *, limit: int, limit_bytes: int, per_step: int = 2) -> None:
        """per_step: groups of each step that stay longer than others."""
        self._archive = archive
        self._limit = limit
        self._retention = SampleRetention(limit=limit, limit_bytes=limit_bytes, per_step=per_step)
        columns = "policy, group_id, flow, version, rank, ordinal, trajectories, size_bytes, prompt"
        rows = archive.rows(f"select {columns} from sampled_groups order by ordinal")  # noqa: S608 (constant)
        for policy, group, flow, version, rank, *columns_of_group in rows:
            series = PolicyId(policy), None if version is None else FlowId(flow)
            self._retention.restore((PolicyId(policy), GroupId(group)), _stored_group(*columns_of_group), series, rank)
        ((self._last_ordinal,),) = archive.rows("select coalesce(max(ordinal), 0) from samples")
        open_groups = archive.rows("select distinct policy, group_id from samples where outcome = ?", (BUFFERED,))
        self._open = {(PolicyId(policy), GroupId(group)) for policy, group in open_groups}
        """Shares of groups whose outcome may still change."""

    def add(self, group: Group, outcomes: Mapping[PolicyId, str], *, at: float) -> None:
        """Stores the samples of a finished group. outcomes: outcome of each policy's share."""
        samples: dict[PolicyId, list[SampledTrajectory]] = {}
        for sample in _samples(group, outcomes, at) if self._limit else ():
            samples.setdefault(sample.policy, []).append(sample)
        for policy in samples:
            # A group may arrive again after a crash before the journal had it; it then replaces its earlier samples.
            if self._retention.remove((policy, group.id)):
                self._delete((policy, group.id))
            if outcomes[policy] == BUFFERED:
                self._open.add((policy, group.id))
        self._store(group, samples)
        for policy, of_policy in samples.items():
            versions = [span.version for sample in of_policy for span in sample.spans if span.version is not None]
            if outcomes[policy] == EVALUATED and versions:
                statement = "update sampled_groups set version = ? where policy = ? and group_id = ?"
                self._archive.put(statement, int(max(versions)), policy, group.id)
                self._choose((policy, group.id), (policy, group.flow), int(max(versions)))
        self._trim()

    def set_outcome(
        self, policy: PolicyId, group: GroupId, *, outcome: str, step: int | None, trained_at: float | None = None
    ) -> None:
        """Sets the outcome of a buffered group. trained_at: when its step was acknowledged. Unix seconds."""
        if (policy, group) not in self._open:
            return
        self._open.remove((policy, group))
        statement = "update samples set outcome = ?, step = ?, trained_at = ? where policy = ? and group_id = ?"
        self._archive.put(statement, outcome, step, trained_at, policy, group)
        if step is not None:
            self._archive.put(
                "update sampled_groups set step = ? where policy = ? and group_id = ?", step, policy, group
            )
            self._choose((policy, group), (policy, None), step)

    def set_batched(self, policy: PolicyId, groups: Iterable[GroupId], *, at: float) -> None:
        """Records when a batch took these groups; ignores those without samples."""
        for group in groups:
            if (policy, group) in self._open:
                statement = "update samples set batched_at = ? where policy = ? and group_id = ?"
                self._archive.put(statement, at, policy, group)

    def mark_unrecorded(self, waiting: Mapping[PolicyId, Iterable[GroupId]]) -> None:
        """Marks groups that are not waiting after a restart: their outcome was lost."""
        still_waiting = {(policy, group) for policy, groups in waiting.items() for group in groups}
        for policy, group in self._open - still_waiting:
            self.set_outcome(policy, group, outcome=UNRECORDED, step=None)

    async def index(self, query: SampleIndexQuery) -> SampleIndex:
        """Returns the steps and prompts with sampled groups. Raises: DeadlineExceeded."""
        return await self._archive.read(lambda database: find_sample_index(database, query))

    async def page(self, query: TrajectoryQuery) -> TrajectoryPage:
        """Returns samples, newest first. Raises: DeadlineExceeded."""
        return await self._archive.read(lambda database: find_trajectories(database, query))

    async def groups(self, query: GroupQuery) -> GroupPage:
        """Returns the groups of samples, newest first. Raises: DeadlineExceeded."""
        return await self._archive.read(lambda database: find_groups(database, query))

    async def rewards(self, query: RewardQuery) -> RewardHistogram:
        """Returns the distribution of rewards. Raises: DeadlineExceeded."""
        return await self._archive.read(lambda database: find_rewards(database, query))

    def _store(self, group: Group, samples: Mapping[PolicyId, Sequence[SampledTrajectory]]) -> None:
        for policy, of_policy in samples.items():
            first, size_bytes = self._last_ordinal + 1, 0
            for sample in of_policy:
                size_bytes += self._store_sample(sample)
            prompt = group.prompt.id
            self._retention.add((policy, group.id), _stored_group(first, len(of_policy), size_bytes, prompt))
            self._archive.put(
                "insert or replace into sampled_groups values (?, ?, ?, ?, null, null, null, ?, ?, ?)",
                *(policy, group.id, group.flow, prompt, len(of_policy), size_bytes, first),
            )

    def _store_sample(self, sample: SampledTrajectory) -> int:
        """Stores a sample; returns its size in bytes."""
        self._last_ordinal += 1
        calls = encode_calls(sample.calls)
        numbered = replace(sample, ordinal=self._last_ordinal, calls=())
        size_bytes = _size_bytes(numbered) + len(calls)
        memory_bytes = size_bytes + _TOKEN_MEMORY_BYTES * len(numbered.token_ids)
        self._archive.put(_INSERT, *_columns(numbered, size_bytes), calls, size_bytes=memory_bytes)
        return size_bytes

    def _choose(self, key: GroupKey, series: Series, step: int) -> None:
        for (policy, group), rank in self._retention.choose(key, series, step).items():
            self._set_rank(policy, group, rank)

    def _set_rank(self, policy: PolicyId, group: GroupId, rank: int | None) -> None:
        statement = "update sampled_groups set rank = ? where policy = ? and group_id = ?"
        self._archive.put(statement, rank, policy, group)

    def _trim(self) -> None:
        released, deleted = self._retention.take_surplus()
        for policy, group in released:
            self._set_rank(policy, group, None)
        for key in deleted:
            self._delete(key)

    def _delete(self, key: GroupKey) -> None:
        for table in ("samples", "sampled_groups"):
            self._archive.put(f"delete from {table} where policy = ? and group_id = ?", *key)  # noqa: S608 (constants)


def _stored_group(ordinal: int, trajectories: int, size_bytes: int, prompt: str) -> StoredGroup:
    return StoredGroup(
        ordinal=ordinal,
        trajectories=trajectories,
        size_bytes=size_bytes,
        prompt=prompt,
        position=prompt_position(prompt),
    )


def _samples(group: Group, outcomes: Mapping[PolicyId, str], at: float) -> Iterator[SampledTrajectory]:
    """Yields samples in the order of the members, with ordinal 0."""
    if not _has_text(group) and any(episode.failure is None for episode in group.episodes):
        return
    reference, fields = str(group.prompt.fields.get("answer", "")), _prompt_fields(group)
    for episode in group.episodes:
        for position, (policy, outcome) in enumerate(outcomes.items()):
            member = _sample_without_texts(group, episode, policy, outcome=outcome, at=at)
            if episode.failure is not None:
                # The calls are those of the whole episode, so that only one of its samples has them.
                yield member if position else replace(member, **_calls_of(episode.failed_calls))
                continue
            for index, trajectory in Trajectories.of(episode.trajectories).with_details():
                if trajectory.policy == policy and (trajectory.prompt_text or trajectory.completion_text):
                    yield replace(
                        _with_text(member, trajectory), index=index, reference_text=reference, prompt_fields=fields
                    )


def _prompt_fields(group: Group) -> str:
    text = json.dumps(dict(group.prompt.fields), ensure_ascii=False)
    return text if len(text) <= MAX_PROMPT_FIELDS else ""


def _has_text(group: Group) -> bool:
    return any(
        trajectory.prompt_text or trajectory.completion_text
        for episode in group.episodes
        for _, trajectory in Trajectories.of(episode.trajectories).with_details()
    )


def _sample_without_texts(
    group: Group, episode: Episode, policy: PolicyId, *, outcome: str, at: float
) -> SampledTrajectory:
    """Returns a sample without texts, which is complete for a failed member."""
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
        outcome=outcome,
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
        hops=episode.hops,
    )


_COPIED = tuple(
    {field.name for field in fields(SampledTrajectory)}
    & {field.name for field in fields(Trajectory)} - {"calls", "logprobs", "policy", "token_ends", "tokens"}
)
"""Fields that a sample has as its trajectory has them."""


def _with_text(member: SampledTrajectory, trajectory: Trajectory) -> SampledTrajectory:
    return replace(
        member,
        tokens=len(trajectory.tokens),
        model_tokens=trajectory.model_tokens,
        **{name: getattr(trajectory, name) for name in _COPIED},
        **_calls_of(trajectory.calls),
        **_tokens_of(trajectory),
    )


def _calls_of(calls: tuple[AgentCall, ...]) -> dict[str, Any]:
    return {"call_outcomes": Counter(call.outcome.value for call in calls), "calls": calls}


def _tokens_of(trajectory: Trajectory) -> dict[str, Any]:
    """Returns the tokens with their log-probabilities, and the ends in the text if each model-written token has one."""
    arrays = {"token_ids": tuple(trajectory.tokens.tolist()), "logprobs": tuple(trajectory.logprobs.tolist())}
    has_ends = trajectory.token_ends and len(trajectory.token_ends) == trajectory.model_tokens
    return {**arrays, "token_ends": trajectory.token_ends} if has_ends else arrays


def _size_bytes(sample: SampledTrajectory) -> int:
    """Returns the approximate size on disk."""
    labels = "".join([*sample.labels, *sample.labels.values()])
    texts = (sample.prompt_text, sample.completion_text, sample.reference_text, sample.prompt_fields, labels)
    hop_bytes = sum(_HOP_BYTES + len(hop.detail) + len(hop.error) for hop in sample.hops)
    text_bytes = sum(len(text.encode()) for text in texts)
    return (
        _SAMPLE_BYTES
        + text_bytes
        + _TOKEN_BYTES * len(sample.token_ends)
        + _ID_BYTES * len(sample.token_ids)
        + hop_bytes
    )


def _columns(sample: SampledTrajectory, size_bytes: int) -> tuple[object, ...]:
    """Returns a row without its calls: queried or changeable values as columns, the rest as a message encoded in the
    writer's thread."""
    rest = replace(sample, prompt_text="", completion_text="", outcome="", step=None)
    rest = replace(rest, token_ends=(), logprobs=(), token_ids=())
    terms = {name: value for name, value in sample.reward_terms.items() if isfinite(value)}
    return (
        sample.ordinal,
        sample.policy,
        sample.flow,
        sample.group,
        sample.task,
        sample.node,
        sample.at,
        sample.step,
        sample.outcome,
        sample.reward if sample.failure is None else None,
        sample.is_truncated,
        sample.failure.message if sample.failure is not None else None,
        size_bytes,
        lambda: to_message(rest, pb.SampledTrajectory).SerializeToString(),
        sample.prompt_text,
        sample.completion_text,
        sample.ending.value if sample.ending else "",
        sample.role,
        json.dumps(terms),
        lambda: pb.SampledTrajectory(
            token_ends=sample.token_ends, logprobs=sample.logprobs, token_ids=sample.token_ids
        ).SerializeToString(),
        json.dumps(dict(sample.call_outcomes)),
    )
