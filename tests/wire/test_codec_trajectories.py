"""Trajectories with separate arrays: decoding copies nothing and validates every length."""

import numpy as np
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.trajectories import Trajectory
from astraflow.wire.codec_trajectories import arrays_of, decode_trajectories, encode_trajectory
from astraflow.wire.frames import Arrays
from astraflow.wire.pb import common_pb2 as pb
from tests import make


def bytes_of(*arrays: bytes) -> Arrays:
    return np.frombuffer(b"".join(arrays), dtype=np.uint8)


def arrays(*trajectories: Trajectory) -> Arrays:
    return bytes_of(*(array.tobytes() for array in arrays_of(trajectories)))


def test_arrays_are_read_only_views_of_the_bytes() -> None:
    decoded_arrays = arrays(make.trajectory())
    (decoded,) = decode_trajectories([encode_trajectory(make.trajectory())], decoded_arrays)
    for array in (decoded.tokens, decoded.logprobs):
        assert np.shares_memory(array, decoded_arrays)
        assert not array.flags.writeable


def test_arrays_are_little_endian_with_token_ids_before_logprobs() -> None:
    trajectory = make.trajectory(prompt_tokens=1, model_tokens=1)
    half = np.float32(-0.5).tobytes()
    assert arrays(trajectory, trajectory).tobytes() == b"\0\0\0\0\1\0\0\0" * 2 + half * 2


def test_each_trajectory_gets_its_own_arrays() -> None:
    trajectories = [make.trajectory(prompt_tokens=length, model_tokens=2 * length) for length in (1, 3, 2)]
    decoded = list(
        decode_trajectories([encode_trajectory(trajectory) for trajectory in trajectories], arrays(*trajectories))
    )
    for sent, back in zip(trajectories, decoded, strict=True):
        assert np.array_equal(back.tokens, sent.tokens)
        assert np.array_equal(back.logprobs, sent.logprobs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": float("nan")}, "reward nan is not a finite number"),
        ({"spans": [pb.Span(length=0), pb.Span(length=3), pb.Span(length=5, model_version=1)]}, "a span has no tokens"),
        ({"spans": [pb.Span(length=3)]}, "52 bytes, but the spans count 3 tokens and 0 logprobs"),
        ({"spans": [pb.Span(length=2**32 - 1, model_version=2)]}, "52 bytes, but the spans count 4294967295 tokens"),
        ({"policy": ""}, "'' as PolicyId"),
    ],
)
def test_an_invalid_trajectory_is_refused(change: dict[str, object], message: str) -> None:
    good = encode_trajectory(make.trajectory())
    fields = {field.name: value for field, value in good.ListFields()}
    with pytest.raises(InvalidInput, match=message):
        list(decode_trajectories([pb.Trajectory(**(fields | change))], arrays(make.trajectory())))


@pytest.mark.parametrize(
    ("tokens", "logprobs", "message"),
    [
        ([-1] * 8, [-0.5] * 5, "a token id is negative"),
        ([1] * 8, [np.nan] * 5, "a logprob is not a finite number"),
        ([1] * 8, [0.0] * 4 + [-np.inf], "a logprob is not a finite number"),
        ([1] * 8, [0.0] * 4, "48 bytes, but the spans count 8 tokens and 5 logprobs"),
        ([], [], "0 bytes, but the spans count 8 tokens and 5 logprobs"),
    ],
)
def test_invalid_arrays_are_refused(tokens: list[int], logprobs: list[float], message: str) -> None:
    encoded = bytes_of(np.array(tokens, dtype="<i4").tobytes(), np.array(logprobs, dtype="<f4").tobytes())
    with pytest.raises(InvalidInput, match=message):
        list(decode_trajectories([encode_trajectory(make.trajectory())], encoded))
