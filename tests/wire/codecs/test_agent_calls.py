"""Blocks of recorded calls: clipped by the sender, and refused by the receiver when damaged, oversized or invalid."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import zstandard

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.agent_calls import MAX_BODY_CHARACTERS, MAX_CALLS, AgentCall, CallOutcome, LiveSession
from astraflow.wire.codecs.agent_calls import MAX_BLOCK_BYTES, check_blocks, decode_calls, encode_calls
from astraflow.wire.codecs.converter import from_message
from astraflow.wire.codecs.trajectories import decode_trajectories, encode_trajectories
from astraflow.wire.pb import common_pb2 as pb
from tests import make
from tests.wire.codecs.test_trajectories import bytes_of

CALL = AgentCall(
    began_s=1.5,
    duration_s=0.25,
    dialect="chat",
    model="solver",
    request='{"messages": []}',
    reply='{"choices": []}',
    outcome=CallOutcome.ANSWERED,
    turn=0,
)


def block(**changes: Any) -> bytes:
    """Returns a block with one call that no sender would encode."""
    fields = {"dialect": "chat", "model": "solver", "outcome": "answered"} | changes
    return compressed(pb.AgentCalls(calls=[pb.AgentCall(**fields)]).SerializeToString())


def compressed(body: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(body)


def test_calls_of_a_trajectory_survive_the_wire() -> None:
    calls = (CALL, replace(CALL, outcome=CallOutcome.REFUSED, turn=None, reply="too many turns"))
    message, arrays = encode_trajectories([[replace(make.trajectory(), calls=calls)]])
    (decoded,) = decode_trajectories(message, bytes_of(arrays))
    assert decoded.calls == calls


def test_calls_of_a_trajectory_are_not_sent_to_trainers() -> None:
    message, _ = encode_trajectories([[replace(make.trajectory(), calls=(CALL,), answer="4")]], has_calls=False)
    assert [(details.calls, details.answer) for details in message.details] == [(b"", "4")]


def test_a_trajectory_without_calls_has_no_block() -> None:
    assert encode_calls(()) == b""
    assert decode_calls(b"") == ()


def test_the_repeating_requests_of_a_session_are_small() -> None:
    conversation = "".join(f'{{"role": "tool", "content": "result {turn * 7919 % 1000}"}}, ' for turn in range(400))
    calls = [replace(CALL, request=conversation[: 40 * turn]) for turn in range(1, 200)]
    assert len(encode_calls(calls)) < sum(len(call.request) for call in calls) / 20


def test_the_sender_clips_what_the_receiver_would_refuse() -> None:
    long = replace(
        CALL, request="x" * (MAX_BODY_CHARACTERS + 1), model="m\n" * 300, began_s=float("nan"), reply="a\ud800b"
    )
    calls = decode_calls(encode_calls([long] * (MAX_CALLS + 1)))
    assert len(calls) == MAX_CALLS
    assert (len(calls[0].request), calls[0].began_s, calls[0].reply) == (MAX_BODY_CHARACTERS, 0.0, "a?b")
    assert calls[0].model.isprintable()


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"not compressed", "trajectory.invalid_calls"),
        (compressed(b"\xff\xff"), "trajectory.invalid_calls"),
        (compressed(bytes(100))[:-4], "trajectory.invalid_calls"),
        (zstandard.ZstdCompressor(write_content_size=False).compress(b"\n\0"), "trajectory.invalid_calls"),
        (compressed(bytes(MAX_BLOCK_BYTES + 1)), "trajectory.invalid_calls"),
        (block(outcome="lost"), "trajectory.invalid_calls"),
        (block(began_s=float("inf")), "request.invalid_field"),
        (block(request="x" * (MAX_BODY_CHARACTERS + 1)), "request.invalid_field"),
        (block(model="two\nlines"), "request.invalid_field"),
        (
            compressed(pb.AgentCalls(calls=[pb.AgentCall(outcome="answered")] * (MAX_CALLS + 1)).SerializeToString()),
            "request.invalid_field",
        ),
    ],
)
def test_an_invalid_block_is_refused(content: bytes, code: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        decode_calls(content)
    assert refusal.value.code == code


def test_blocks_that_expand_beyond_the_size_of_a_message_are_refused_before_they_expand() -> None:
    large = compressed(bytes(MAX_BLOCK_BYTES))
    check_blocks([large, b""])
    with pytest.raises(InvalidInput) as refusal:
        check_blocks([large] * 2)
    assert refusal.value.code == "trajectory.invalid_calls"
    message, arrays = encode_trajectories([[make.trajectory()] * 2])
    message.details.extend(pb.TrajectoryDetails(trajectory=index, calls=large) for index in range(2))
    with pytest.raises(InvalidInput) as refusal:
        decode_trajectories(message, bytes_of(arrays))
    assert refusal.value.code == "trajectory.invalid_calls"


@pytest.mark.parametrize(
    "change", [lambda message: message.ClearField("task"), lambda message: setattr(message, "flow", "")]
)
def test_a_session_without_an_id_is_refused(change: Callable[[pb.LiveSession], object]) -> None:
    message = pb.LiveSession(task="train:0/0", flow="train")
    assert from_message(message, LiveSession).task == "train:0/0"
    change(message)
    with pytest.raises(InvalidInput):
        from_message(message, LiveSession)
