"""Codec of agent programs' recorded calls and live sessions.

The recorded calls of a trajectory are one compressed block of bytes, because each request of a session repeats the
conversation so far: they stay small in pushes, in the journal and in the archive.
"""

from collections.abc import Iterable, Sequence

import zstandard
from google.protobuf.message import DecodeError

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.agent_calls import MAX_BODY_CHARACTERS, MAX_CALLS, AgentCall, CallOutcome
from astraflow.wire.channel import MAX_MESSAGE_BYTES
from astraflow.wire.pb import common_pb2 as pb
from astraflow.wire.request_limits import check, clipped_to_limits

MAX_BLOCK_BYTES = MAX_CALLS * (2 * 4 * MAX_BODY_CHARACTERS + 4096)
"""Largest uncompressed size of a block: bodies of four bytes per character, and the small fields."""

_COMPRESSION_LEVEL = 1
"""Compression level: the repetitions are long, so higher levels gain little and take longer."""

_CALL_FIELDS = ("began_s", "duration_s", "dialect", "model", "request", "reply")
_OUTCOMES = {outcome.value: outcome for outcome in CallOutcome}


def encode_calls(calls: Sequence[AgentCall]) -> bytes:
    """Calls -> block, clipped to the limits of requests; empty without calls."""
    if not calls:
        return b""
    message = clipped_to_limits(pb.AgentCalls(calls=[_encode_call(call) for call in calls]))
    return zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).compress(message.SerializeToString())


def decode_calls(block: bytes) -> tuple[AgentCall, ...]:
    """Block -> calls. Raises: InvalidInput for damaged and oversized blocks and for invalid calls."""
    if not block:
        return ()
    size_bytes = block_size_bytes(block)
    if size_bytes > MAX_BLOCK_BYTES:
        raise _invalid(f"they have {size_bytes} bytes; send at most {MAX_BLOCK_BYTES}")
    try:
        message = pb.AgentCalls.FromString(zstandard.ZstdDecompressor().decompress(block))
    except (DecodeError, zstandard.ZstdError) as problem:
        raise _invalid(f"{problem}; send a compressed `AgentCalls` message") from None
    check(message)
    return tuple(_decode_call(call) for call in message.calls)


def check_blocks(blocks: Iterable[bytes]) -> None:
    """Checks that the blocks of one push are not larger than a message may be, before any is decompressed.

    Raises: InvalidInput.
    """
    size_bytes = sum(block_size_bytes(block) for block in blocks if block)
    if size_bytes > MAX_MESSAGE_BYTES:
        raise _invalid(f"those of one push have {size_bytes} bytes; send at most {MAX_MESSAGE_BYTES}")


def block_size_bytes(block: bytes) -> int:
    """Returns the declared uncompressed size of a block, which decompression enforces. Raises: InvalidInput."""
    try:
        size_bytes = zstandard.frame_content_size(block)
    except zstandard.ZstdError as problem:
        raise _invalid(f"{problem}; send a compressed `AgentCalls` message") from None
    if size_bytes < 0:
        raise _invalid("their size is not declared; send a zstd frame with its content size")
    return int(size_bytes)


def decode_outcome(name: str) -> CallOutcome:
    """Returns the outcome of a message. Raises: InvalidInput for an unknown name."""
    outcome = _OUTCOMES.get(name)
    if outcome is None:
        raise _invalid(f"unknown outcome {name[:140]!r}; use one of {', '.join(_OUTCOMES)}")
    return outcome


def _encode_call(call: AgentCall) -> pb.AgentCall:
    fields = {name: getattr(call, name) for name in _CALL_FIELDS}
    texts = {name: value for name, value in fields.items() if isinstance(value, str)}
    # Bodies come from agent programs: a lone surrogate, which no message can hold, must not stop a push.
    fields |= {name: text.encode("utf-8", "replace").decode() for name, text in texts.items()}
    return pb.AgentCall(outcome=call.outcome.value, turn=call.turn, **fields)


def _decode_call(message: pb.AgentCall) -> AgentCall:
    return AgentCall(
        outcome=decode_outcome(message.outcome),
        turn=message.turn if message.HasField("turn") else None,
        **{name: getattr(message, name) for name in _CALL_FIELDS},
    )


def _invalid(cause: str) -> InvalidInput:
    return InvalidInput(f"cannot decode the calls of a trajectory: {cause}", code="trajectory.invalid_calls")
