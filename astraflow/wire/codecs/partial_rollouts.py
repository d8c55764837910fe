"""Codec of partial rollouts.

Unlike pushes and batches, arrays are plain fields here: only few tasks are handed back, once each.
"""

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, TaskId, Version
from astraflow.contract.rollouts.generation import Finish, Generation, VersionSpan
from astraflow.contract.rollouts.partial_rollouts import PartialRollout, RecordedGeneration
from astraflow.contract.rollouts.token_columns import TokenColumns
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.wire.codecs.token_columns import columns_size, decode_columns, encode_columns
from astraflow.wire.pb import common_pb2 as common
from astraflow.wire.pb import data_plane_pb2 as pb

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")


def encode_partial_rollout(partial: PartialRollout) -> pb.PartialRollout:
    """Partial rollout -> message."""
    return pb.PartialRollout(
        task=partial.task,
        attempt=partial.attempt,
        generations=[encode_recorded_generation(recorded) for recorded in partial.generations],
        continued_tokens=partial.continued_tokens,
    )


def decode_partial_rollout(message: pb.PartialRollout) -> PartialRollout:
    """Message -> partial rollout. Raises: InvalidInput, also above `MAX_PARTIAL_ROLLOUT_BYTES`."""
    return PartialRollout(
        task=TaskId(message.task),
        attempt=message.attempt,
        generations=tuple(decode_recorded_generation(recorded) for recorded in message.generations),
        continued_tokens=message.continued_tokens,
    )


def encode_recorded_generation(recorded: RecordedGeneration) -> pb.RecordedGeneration:
    """Recorded generation -> message."""
    generation = recorded.generation
    entries, arrays = encode_columns([(generation.columns, len(generation.tokens))])
    return pb.RecordedGeneration(
        policy=recorded.policy,
        request=recorded.request,
        tokens=generation.tokens.astype(_INT32, copy=False).tobytes(),
        logprobs=generation.logprobs.astype(_FLOAT32, copy=False).tobytes(),
        spans=[common.Span(length=span.length, model_version=span.version) for span in generation.spans],
        finish=generation.finish.value,
        token_columns=entries,
        column_arrays=b"".join(array.tobytes() for array in arrays),
        drafted=generation.drafted,
        accepted=generation.accepted,
    )


def decode_recorded_generation(message: pb.RecordedGeneration) -> RecordedGeneration:
    """Message -> recorded generation; its arrays are read-only views of the message's bytes, not copies.

    Raises: InvalidInput for lengths that do not fit, negative tokens, or logprobs that are not finite.
    """
    what = f"cannot decode recorded generation of {message.policy!r}"
    tokens = _tokens(message.tokens, what=what)
    return RecordedGeneration(
        policy=PolicyId(message.policy),
        request=message.request,
        generation=Generation(
            tokens=tokens,
            logprobs=_logprobs(message.logprobs, what=what),
            spans=tuple(_decode_version_span(span, what=what) for span in message.spans),
            finish=_decode_finish(message.finish, what=what),
            columns=_columns(message, tokens, what=what),
            drafted=message.drafted,
            accepted=message.accepted,
        ),
    )


def _decode_version_span(message: common.Span, *, what: str) -> VersionSpan:
    if not message.HasField("model_version") or message.length == 0:
        raise InvalidInput(
            f"{what}: a span lacks tokens or version; send both for each span", code="partial_rollout.invalid"
        )
    return VersionSpan(version=Version(message.model_version), length=message.length)


def _decode_finish(name: str, *, what: str) -> Finish:
    try:
        return Finish(name)
    except ValueError:
        finish_names = ", ".join(finish.value for finish in Finish)
        raise InvalidInput(
            f"{what}: unknown finish {name!r}; use one of {finish_names}", code="message.unknown_value"
        ) from None


def _tokens(data: bytes, *, what: str) -> Int32Array:
    _check_width(data, what=what)
    tokens = np.frombuffer(data, dtype=_INT32)
    if tokens.size and tokens.min() < 0:
        raise InvalidInput(f"{what}: a token id is negative; send ids from 0", code="partial_rollout.invalid")
    return tokens


def _logprobs(data: bytes, *, what: str) -> Float32Array:
    _check_width(data, what=what)
    logprobs = np.frombuffer(data, dtype=_FLOAT32)
    if not np.isfinite(logprobs).all():
        raise InvalidInput(
            f"{what}: a logprob is not a finite number; send finite logprobs", code="partial_rollout.invalid"
        )
    return logprobs


def _columns(message: pb.RecordedGeneration, tokens: Int32Array, *, what: str) -> TokenColumns:
    size = columns_size(message.token_columns, tokens=len(tokens))
    if len(message.column_arrays) != size:
        raise InvalidInput(
            f"{what}: its token columns have {len(message.column_arrays)} bytes; send {size} for {len(tokens)} tokens",
            code="partial_rollout.invalid",
        )
    arrays = np.frombuffer(message.column_arrays, dtype=np.uint8)
    return decode_columns(message.token_columns, arrays, sampled=tokens)


def _check_width(data: bytes, *, what: str) -> None:
    if len(data) % 4:
        raise InvalidInput(
            f"{what}: an array has {len(data)} bytes; send 4 bytes per token or logprob", code="partial_rollout.invalid"
        )
