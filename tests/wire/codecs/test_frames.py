"""Messages that end with arrays: valid protobuf either way, and parsed without trusting a length."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.wire.codecs.frames import join, split
from astraflow.wire.pb import data_plane_pb2 as pb
from tests.errors import raises_code

ARRAYS: list[Int32Array | Float32Array] = [np.arange(3, dtype=np.int32), np.array([0.5, -1.0], dtype=np.float32)]
BODY = b"".join(array.tobytes() for array in ARRAYS)


def test_arrays_start_at_byte_eight_and_are_not_copied() -> None:
    raw = join(pb.PushRequest(node="node-1"), ARRAYS)
    message, arrays = split(pb.PushRequest, raw)
    assert message.node == "node-1"
    assert raw[8 : 8 + len(BODY)] == BODY
    assert np.shares_memory(arrays, np.frombuffer(raw, dtype=np.uint8))


def test_framed_messages_are_valid_protobuf() -> None:
    message = pb.PushRequest.FromString(join(pb.PushRequest(node="node-1"), ARRAYS))
    assert (message.node, message.arrays) == ("node-1", BODY)


def test_messages_of_other_protobuf_libraries_are_decoded() -> None:
    raw = pb.PushRequest(node="node-1", arrays=BODY).SerializeToString()
    message, arrays = split(pb.PushRequest, raw)
    assert (message.node, arrays.tobytes()) == ("node-1", BODY)


def test_leading_arrays_with_a_short_length_field_are_decoded() -> None:
    raw = b"\x72\0\x7a" + bytes([len(BODY)]) + BODY + pb.PushRequest(node="n").SerializeToString()
    message, arrays = split(pb.PushRequest, raw)
    assert (message.node, arrays.tobytes()) == ("n", BODY)


@pytest.mark.parametrize("length", [0, 1, 127, 128, 2**20])
def test_array_lengths_are_written_in_five_bytes(length: int) -> None:
    raw = join(pb.PushRequest(node="n"), [np.zeros(length, dtype=np.int32)])
    assert len(raw) == 8 + 4 * length + len(pb.PushRequest(node="n").SerializeToString())
    assert split(pb.PushRequest, raw)[1].nbytes == 4 * length


def test_a_length_beyond_the_message_is_refused() -> None:
    raw = bytearray(join(pb.PushRequest(node="n"), ARRAYS))
    raw[3:8] = b"\xff\xff\xff\xff\x0f"
    with raises_code(InvalidInput, "message.malformed", f"{len(raw)} bytes", "4294967295 bytes"):
        split(pb.PushRequest, bytes(raw))


def test_repeated_arrays_are_refused() -> None:
    raw = join(pb.PushRequest(arrays=BODY), ARRAYS)
    with raises_code(InvalidInput, "message.malformed", "PushRequest"):
        split(pb.PushRequest, raw)


@pytest.mark.long
@given(raw=st.binary(max_size=200))
@example(raw=b"\x72\0\x7a")
@example(raw=b"\x72\0\x7a\xff\xff\xff\xff\xff")
@example(raw=b"\x72\0\x7a\x80\x80\x80\x80\0")
def test_any_bytes_are_decoded_or_refused(raw: bytes) -> None:
    try:
        message, arrays = split(pb.BatchPiece, raw)
    except InvalidInput:
        return
    assert isinstance(message, pb.BatchPiece)
    assert arrays.nbytes <= len(raw)


@given(cut=st.integers(0, 60), flip=st.integers(0, 60 * 8 - 1))
def test_a_damaged_message_is_decoded_or_refused(cut: int, flip: int) -> None:
    raw = bytearray(join(pb.PushRequest(node="node-1", tasks=["train:0/0"]), ARRAYS))
    raw[flip // 8 % len(raw)] ^= 1 << flip % 8
    try:
        split(pb.PushRequest, bytes(raw[: len(raw) - cut]))
    except InvalidInput as problem:
        assert str(problem)
