"""Codec of trajectories: a message holds their columns, one block of bytes holds all token ids, logprobs and columns of
tokens."""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import MAX_VERSION, PolicyId
from astraflow.contract.rollouts.token_columns import ColumnArray, TokenColumns
from astraflow.contract.rollouts.trajectories import (
    NO_VERSION,
    Extremes,
    Float32Array,
    Int32Array,
    Trajectories,
    Trajectory,
    TrajectoryColumns,
)
from astraflow.wire.codecs.agent_calls import check_blocks, decode_calls, encode_calls
from astraflow.wire.codecs.common import decode_ending
from astraflow.wire.codecs.frames import Arrays
from astraflow.wire.codecs.token_columns import columns_size, decode_columns, encode_columns
from astraflow.wire.pb import common_pb2 as pb

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")


def encode_trajectories(
    parts: Iterable[Sequence[Trajectory]], *, has_calls: bool = True
) -> tuple[pb.Trajectories, list[ColumnArray]]:
    """Trajectories of all parts, in order -> message and its arrays in wire order: all token ids, all logprobs, then
    the columns of tokens, one after the other.

    has_calls: False leaves out the recorded calls of agent programs, which no trainer reads.
    """
    encoder = _Encoder(has_calls=has_calls)
    for part in parts:
        if isinstance(part, Trajectories):
            encoder.add_columns(part)
        else:
            encoder.add(part)
    return encoder.message()


class _Encoder:
    """Lists of a message: a field that is set at once costs a tenth of one that grows entry by entry."""

    def __init__(self, *, has_calls: bool) -> None:
        self._tokens: list[ColumnArray] = []
        self._logprobs: list[ColumnArray] = []
        self._token_columns: list[tuple[TokenColumns, int]] = []
        self._has_calls = has_calls
        self._policies: list[PolicyId] = []
        self._rewards: list[float] = []
        self._is_truncated: list[bool] = []
        self._span_counts: list[int] = []
        self._span_lengths: list[int] = []
        self._span_versions: list[int] = []
        self._details: list[pb.TrajectoryDetails] = []

    def add_columns(self, part: Trajectories) -> None:
        columns, begin, end = part.columns, part.begin, part.end
        for index, trajectory in part.with_details():
            self._add_details(len(self._rewards) + index, trajectory)
        spans = slice(columns.span_ends[begin], columns.span_ends[end])
        self._policies += part.policies
        self._rewards += part.rewards
        self._is_truncated += columns.is_truncated[begin:end]
        self._span_counts += [after - before for before, after in pairwise(columns.span_ends[begin : end + 1])]
        self._span_lengths += columns.span_lengths[spans]
        self._span_versions += columns.span_versions[spans]
        self._add_arrays(part.tokens, part.logprobs, part.token_columns)

    def add(self, part: Iterable[Trajectory]) -> None:
        for trajectory in part:
            if trajectory.has_details:
                self._add_details(len(self._rewards), trajectory)
            self._policies.append(trajectory.policy)
            self._rewards.append(trajectory.reward)
            self._is_truncated.append(trajectory.is_truncated)
            self._span_counts.append(len(trajectory.spans))
            for span in trajectory.spans:
                self._span_lengths.append(span.length)
                self._span_versions.append(NO_VERSION if span.version is None else span.version)
            self._add_arrays(
                np.ascontiguousarray(trajectory.tokens, dtype=_INT32),
                np.ascontiguousarray(trajectory.logprobs, dtype=_FLOAT32),
                trajectory.token_columns,
            )

    def message(self) -> tuple[pb.Trajectories, list[ColumnArray]]:
        indices = {policy: index for index, policy in enumerate(dict.fromkeys(self._policies))}
        entries, arrays = encode_columns(self._token_columns)
        message = pb.Trajectories(
            policies=indices,
            policy_indices=[indices[policy] for policy in self._policies],
            rewards=self._rewards,
            is_truncated=self._is_truncated,
            span_counts=self._span_counts,
            span_lengths=self._span_lengths,
            span_versions=[version - NO_VERSION for version in self._span_versions],
            details=self._details,
            token_columns=entries,
        )
        return message, [*self._tokens, *self._logprobs, *arrays]

    def _add_arrays(self, tokens: Int32Array, logprobs: Float32Array, columns: TokenColumns) -> None:
        self._tokens.append(tokens)
        self._logprobs.append(logprobs)
        self._token_columns.append((columns, len(logprobs)))

    def _add_details(self, index: int, trajectory: Trajectory) -> None:
        self._details.append(_encode_details(index, trajectory, has_calls=self._has_calls))


def _encode_details(index: int, trajectory: Trajectory, *, has_calls: bool) -> pb.TrajectoryDetails:
    speakers = [span.speaker for span in trajectory.spans]
    return pb.TrajectoryDetails(
        trajectory=index,
        speakers=speakers if any(speakers) else (),
        metrics=trajectory.metrics,
        prompt_text=trajectory.prompt_text,
        completion_text=trajectory.completion_text,
        answer=trajectory.answer,
        text_ends=trajectory.text_ends,
        span_s=trajectory.span_s,
        role=trajectory.role,
        parent=trajectory.parent,
        parent_turn=trajectory.parent_turn,
        turn_rewards=trajectory.turn_rewards,
        turn_discounts=trajectory.turn_discounts,
        reward_terms=trajectory.reward_terms,
        labels=trajectory.labels,
        teacher=trajectory.teacher,
        teacher_prompt=trajectory.teacher_prompt,
        ending="" if trajectory.ending is None else trajectory.ending.value,
        token_ends=trajectory.token_ends,
        calls=encode_calls(trajectory.calls) if has_calls else b"",
    )


def decode_trajectories(message: pb.Trajectories, arrays: Arrays) -> Trajectories:
    """Message and its arrays -> trajectories in columns, whose arrays are read-only views of the bytes, not copies.

    Raises: InvalidInput for columns that do not fit each other or the arrays, negative tokens, numbers that are not
    finite, and invalid details.
    """
    check_blocks(details.calls for details in message.details)
    span_ends = list(accumulate(message.span_counts, initial=0))
    lengths, versions = list(message.span_lengths), list(message.span_versions)
    rewards, is_truncated = list(message.rewards), list(message.is_truncated)
    sizes = {len(message.policy_indices), len(rewards), len(is_truncated), len(message.span_counts)}
    if len(sizes) > 1 or not len(lengths) == len(versions) == span_ends[-1]:
        raise _invalid("the lists of the message have different lengths; send one entry per trajectory and per span")
    if lengths and min(lengths) == 0:
        raise _invalid("a span has no tokens; omit empty spans")
    if versions and max(versions) > MAX_VERSION + 1:
        raise _invalid(f"a version is above {MAX_VERSION}; versions count publishes from 0")
    if not np.isfinite(rewards).all():
        raise _invalid("a reward is not a finite number; give a finite one")
    written = sum(length for length, version in zip(lengths, versions, strict=True) if version)
    columns_bytes = columns_size(message.token_columns, tokens=written)
    tokens, logprobs, rest = _divided(arrays, sum(lengths), written, columns_bytes)
    columns = TrajectoryColumns(
        policies=_policies(message),
        rewards=rewards,
        is_truncated=is_truncated,
        span_ends=span_ends,
        span_lengths=lengths,
        span_versions=[version + NO_VERSION for version in versions],
        tokens=tokens,
        logprobs=logprobs,
        token_columns=_token_columns(message, rest, tokens),
    )
    _check_extremes(columns.extremes)
    for details in message.details:
        _add_details(columns, details)
    return Trajectories(columns, 0, len(columns))


def _token_columns(message: pb.Trajectories, arrays: Arrays, tokens: Int32Array) -> TokenColumns:
    if not message.token_columns:
        return {}
    is_written = np.repeat(np.array(message.span_versions, np.int64) > 0, np.array(message.span_lengths, np.int64))
    return decode_columns(message.token_columns, arrays, sampled=tokens[is_written])


def _policies(message: pb.Trajectories) -> list[PolicyId]:
    policies = PolicyId.checked(message.policies)
    try:
        return [policies[index] for index in message.policy_indices]
    except IndexError:
        raise _invalid(f"a trajectory refers to a policy beyond the {len(policies)} of the message; add it") from None


def _divided(arrays: Arrays, tokens: int, logprobs: int, columns: int) -> tuple[Int32Array, Float32Array, Arrays]:
    """Divides the bytes. columns: bytes of the columns of tokens."""
    if arrays.nbytes != 4 * (tokens + logprobs) + columns:
        raise _invalid(
            f"the arrays have {arrays.nbytes} bytes, but the spans count {tokens} tokens and {logprobs} logprobs; "
            f"send 4 bytes each, then {columns} bytes of token columns"
        )
    token_ids, values, rest = np.split(arrays, [4 * tokens, 4 * (tokens + logprobs)])
    return token_ids.view(_INT32), values.view(_FLOAT32), rest


def _check_extremes(extremes: Extremes) -> None:
    if extremes.largest_token >= 2**31:
        raise _invalid("a token id is negative; send ids from 0")
    if not (math.isfinite(extremes.lowest_logprob) and math.isfinite(extremes.highest_logprob)):
        raise _invalid("a logprob is not a finite number; send finite logprobs")


def _add_details(columns: TrajectoryColumns, details: pb.TrajectoryDetails) -> None:
    """Adds a trajectory with its details to those that are built. Its constructor checks them. Raises: InvalidInput."""
    index, spans = details.trajectory, columns.span_ends[details.trajectory : details.trajectory + 2]
    if len(spans) < 2 or index in columns.built:
        raise _invalid(f"trajectory {index} has details twice, or does not exist; send one entry in their order")
    if len(details.speakers) not in (0, spans[1] - spans[0]):
        raise _invalid(f"trajectory {index} has {len(details.speakers)} speakers; send one per span, or none")
    columns.build(
        index,
        speakers=details.speakers,
        metrics=dict(details.metrics),
        prompt_text=details.prompt_text,
        completion_text=details.completion_text,
        text_ends=tuple(details.text_ends),
        span_s=tuple(details.span_s),
        answer=details.answer,
        role=details.role,
        parent=details.parent if details.HasField("parent") else None,
        parent_turn=details.parent_turn if details.HasField("parent_turn") else None,
        turn_rewards=tuple(details.turn_rewards),
        turn_discounts=tuple(details.turn_discounts),
        reward_terms=dict(details.reward_terms),
        labels=dict(details.labels),
        teacher=details.teacher,
        teacher_prompt=tuple(details.teacher_prompt),
        ending=decode_ending(details.ending),
        token_ends=tuple(details.token_ends),
        calls=decode_calls(details.calls),
    )


def _invalid(cause: str) -> InvalidInput:
    return InvalidInput(f"cannot decode trajectories: {cause}", code="trajectory.invalid")
