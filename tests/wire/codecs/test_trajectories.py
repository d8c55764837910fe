"""Trajectories in columns with separate arrays: decoding copies nothing and validates every length."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.trajectories import Trajectories
from astraflow.wire.codecs.frames import Arrays
from astraflow.wire.codecs.trajectories import decode_trajectories, encode_trajectories
from astraflow.wire.pb import common_pb2 as pb
from tests import make
from tests.errors import raises_code
from tests.wire.strategies import same


def bytes_of(arrays: Sequence[npt.NDArray[Any]]) -> Arrays:
    return np.frombuffer(b"".join(array.tobytes() for array in arrays), dtype=np.uint8)


def test_arrays_are_read_only_views_of_the_bytes() -> None:
    message, arrays = encode_trajectories([[make.trajectory()]])
    decoded_arrays = bytes_of(arrays)
    (decoded,) = decode_trajectories(message, decoded_arrays)
    for array in (decoded.tokens, decoded.logprobs):
        assert np.shares_memory(array, decoded_arrays)
        assert not array.flags.writeable


def test_arrays_are_little_endian_with_token_ids_before_logprobs() -> None:
    trajectory = make.trajectory(prompt_tokens=1, model_tokens=1)
    half = np.float32(-0.5).tobytes()
    _, arrays = encode_trajectories([[trajectory], [trajectory]])
    assert bytes_of(arrays).tobytes() == b"\0\0\0\0\1\0\0\0" * 2 + half * 2


def test_trajectories_of_several_parts_are_decoded_in_order_as_they_were() -> None:
    trajectories = [
        replace(
            make.trajectory(
                policy=policy, prompt_tokens=length, model_tokens=2 * length, version=length, reward=length / 8
            ),
            role=role,
        )
        for policy, length, role in (("solver", 1, ""), ("verifier", 3, "judge"), ("solver", 2, ""))
    ]
    message, arrays = encode_trajectories([trajectories[:1], Trajectories.of(trajectories)[1:]])
    decoded = decode_trajectories(message, bytes_of(arrays))
    assert same(tuple(decoded), tuple(trajectories))
    assert decoded.rewards == [1 / 8, 3 / 8, 2 / 8]
    assert decoded.roles() == ["", "judge", ""]
    assert decoded.model_tokens == [2, 6, 4]
    assert decoded.oldest_versions == [1, 3, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": [float("nan")]}, "a reward is not a finite number"),
        ({"span_counts": [3], "span_lengths": [0, 3, 5], "span_versions": [0, 0, 2]}, "a span has no tokens"),
        ({"span_lengths": [3, 2]}, "52 bytes, but the spans count 5 tokens and 2 logprobs"),
        ({"span_lengths": [3, 2**32 - 1]}, "52 bytes, but the spans count 4294967298 tokens"),
        ({"span_versions": [0, 2**64 - 1]}, "a version is above"),
        ({"span_versions": [0]}, "have different lengths"),
        ({"span_counts": [1]}, "have different lengths"),
        ({"rewards": []}, "have different lengths"),
        ({"policies": [""]}, "'' as PolicyId"),
        ({"policies": ["solver\\nverifier"]}, "as PolicyId"),
        ({"policy_indices": [1]}, "beyond the 1 of the message"),
        ({"details": [pb.TrajectoryDetails(trajectory=1)]}, "trajectory 1 has details twice, or does not exist"),
        ({"details": [pb.TrajectoryDetails()] * 2}, "trajectory 0 has details twice"),
        ({"details": [pb.TrajectoryDetails(speakers=["tool"])]}, "1 speakers; send one per span"),
        ({"details": [pb.TrajectoryDetails(turn_rewards=[1, 2])]}, "1 turns but 2 turn_rewards"),
    ],
)
def test_an_invalid_trajectory_is_refused(change: dict[str, Any], message: str) -> None:
    columns, arrays = encode_trajectories([[make.trajectory()]])
    for field, values in change.items():
        columns.ClearField(field)  # type: ignore[arg-type]  # names of fields are literals
        getattr(columns, field).extend(values)
    with pytest.raises(InvalidInput, match=message):
        decode_trajectories(columns, bytes_of(arrays))


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
    encoded = bytes_of([np.array(tokens, dtype="<i4"), np.array(logprobs, dtype="<f4")])
    with raises_code(InvalidInput, "trajectory.invalid", message):
        decode_trajectories(encode_trajectories([[make.trajectory()]])[0], encoded)
