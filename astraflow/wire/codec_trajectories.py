"""Codec of trajectories: messages hold the small fields, one block of bytes holds all token ids and logprobs."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.spans import Span
from astraflow.contract.trajectories import Float32Array, Int32Array, Trajectory
from astraflow.wire.codec_agent_calls import check_blocks, decode_calls, encode_calls
from astraflow.wire.codec_common import decode_ending, decode_spans, encode_spans
from astraflow.wire.frames import Arrays
from astraflow.wire.pb import common_pb2 as pb
from astraflow.wire.request_limits import MAX_REWARD

_policy = lru_cache(maxsize=256)(PolicyId)

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")

_AT_ONCE = 2**16
"""Values checked per step, so that the intermediate array stays in the processor's cache."""


def encode_trajectory(trajectory: Trajectory) -> pb.Trajectory:
    """Trajectory -> message, without its arrays."""
    message = pb.Trajectory(
        policy=trajectory.policy,
        spans=encode_spans(trajectory.spans),
        reward=trajectory.reward,
        is_truncated=trajectory.is_truncated,
    )
    if trajectory.metrics:
        message.metrics.update(trajectory.metrics)
    if trajectory.prompt_text or trajectory.completion_text:
        message.prompt_text = trajectory.prompt_text
        message.completion_text = trajectory.completion_text
    if trajectory.text_ends:
        message.text_ends.extend(trajectory.text_ends)
    if trajectory.span_s:
        message.span_s.extend(trajectory.span_s)
    if trajectory.token_ends:
        message.token_ends.extend(trajectory.token_ends)
    if trajectory.answer:
        message.answer = trajectory.answer
    if trajectory.calls:
        message.calls = encode_calls(trajectory.calls)
    _encode_interaction(message, trajectory)
    return message


def _encode_interaction(message: pb.Trajectory, trajectory: Trajectory) -> None:
    """Sets the fields of episodes with several turns or roles; most trajectories have none of them."""
    if trajectory.role:
        message.role = trajectory.role
    if trajectory.parent is not None:
        message.parent = trajectory.parent
    if trajectory.parent_turn is not None:
        message.parent_turn = trajectory.parent_turn
    message.turn_rewards.extend(trajectory.turn_rewards)
    message.turn_discounts.extend(trajectory.turn_discounts)
    message.reward_terms.update(trajectory.reward_terms)
    message.labels.update(trajectory.labels)
    if trajectory.ending is not None:
        message.ending = trajectory.ending.value


def arrays_of(trajectories: Sequence[Trajectory]) -> list[Int32Array | Float32Array]:
    """Returns the arrays in wire order: all token ids, then all logprobs."""
    return [
        *[np.ascontiguousarray(trajectory.tokens, dtype=_INT32) for trajectory in trajectories],
        *[np.ascontiguousarray(trajectory.logprobs, dtype=_FLOAT32) for trajectory in trajectories],
    ]


def decode_trajectories(messages: Iterable[pb.Trajectory], arrays: Arrays) -> Iterator[Trajectory]:
    """Messages and their arrays -> trajectories, whose arrays are read-only views of the bytes, not copies.

    Checks arrays and sizes before it yields the first one. Raises: InvalidInput for lengths that do not match, negative
    tokens, or logprobs that are not finite; and for invalid calls.
    """
    shaped = [(message, decode_spans(message.spans)) for message in messages]
    check_blocks(message.calls for message, _ in shaped)
    tokens_end = [0]
    logprobs_end = [0]
    for _, spans in shaped:
        tokens_end.append(tokens_end[-1] + sum(span.length for span in spans))
        logprobs_end.append(logprobs_end[-1] + sum(span.length for span in spans if span.version is not None))
    tokens, logprobs = _divided(arrays, tokens_end[-1], logprobs_end[-1])
    return (
        _trajectory(message, spans, tokens[tokens_end[n] : tokens_end[n + 1]], logprobs[begin : logprobs_end[n + 1]])
        for n, ((message, spans), begin) in enumerate(zip(shaped, logprobs_end[:-1], strict=True))
    )


def _divided(arrays: Arrays, tokens: int, logprobs: int) -> tuple[Int32Array, Float32Array]:
    if arrays.nbytes != 4 * (tokens + logprobs):
        raise InvalidInput(
            f"cannot decode trajectories: the arrays have {arrays.nbytes} bytes, but the spans count {tokens} tokens "
            f"and {logprobs} logprobs; send 4 bytes each",
            code="trajectory.invalid",
        )
    token_ids = arrays[: 4 * tokens].view(_INT32)
    values = arrays[4 * tokens :].view(_FLOAT32)
    if token_ids.size and token_ids.min() < 0:
        raise InvalidInput(
            "cannot decode trajectories: a token id is negative; send ids from 0", code="trajectory.invalid"
        )
    if not all(np.isfinite(values[begin : begin + _AT_ONCE]).all() for begin in range(0, len(values), _AT_ONCE)):
        raise InvalidInput(
            "cannot decode trajectories: a logprob is not a finite number; send finite logprobs",
            code="trajectory.invalid",
        )
    return token_ids, values


def _trajectory(
    message: pb.Trajectory, spans: tuple[Span, ...], tokens: Int32Array, logprobs: Float32Array
) -> Trajectory:
    return Trajectory(
        policy=_policy(message.policy),
        tokens=tokens,
        logprobs=logprobs,
        spans=spans,
        reward=max(min(message.reward, MAX_REWARD), -MAX_REWARD),  # stored data may be older than the limit
        is_truncated=message.is_truncated,
        metrics=dict(message.metrics) if message.metrics else {},
        prompt_text=message.prompt_text,
        completion_text=message.completion_text,
        text_ends=tuple(message.text_ends),
        span_s=tuple(message.span_s),
        answer=message.answer,
        role=message.role,
        parent=message.parent if message.HasField("parent") else None,
        parent_turn=message.parent_turn if message.HasField("parent_turn") else None,
        turn_rewards=tuple(message.turn_rewards),
        turn_discounts=tuple(message.turn_discounts),
        reward_terms=dict(message.reward_terms),
        labels=dict(message.labels),
        ending=decode_ending(message.ending),
        token_ends=tuple(message.token_ends),
        calls=decode_calls(message.calls),
    )
