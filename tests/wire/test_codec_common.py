"""Arrays without copying, spans, JSON fields, and what is refused."""

import numpy as np
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.wire.codec_common import (
    decode_json,
    decode_spans,
    decode_trajectory,
    decode_versions,
    encode_json,
    encode_spans,
    encode_trajectory,
)
from astraflow.wire.pb import common_pb2 as pb
from tests import make


def test_arrays_are_read_only_views_of_the_message() -> None:
    decoded = decode_trajectory(encode_trajectory(make.trajectory()))
    assert not decoded.tokens.flags.owndata
    assert not decoded.tokens.flags.writeable
    assert not decoded.logprobs.flags.owndata


def test_arrays_are_little_endian_int32_and_float32_on_the_wire() -> None:
    message = encode_trajectory(make.trajectory(prompt_tokens=1, model_tokens=1))
    assert message.tokens == b"\0\0\0\0\1\0\0\0"
    assert message.logprobs == np.float32(-0.5).tobytes()


def test_version_zero_is_a_version() -> None:
    spans = make.trajectory(version=0).spans
    assert decode_spans(encode_spans(spans)) == spans


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": b"\0" * 31}, "4 bytes each"),
        ({"logprobs": b"\0" * 3}, "4 bytes each"),
        ({"tokens": np.full(8, -1, dtype="<i4").tobytes()}, "a token id is negative"),
        ({"logprobs": np.full(5, np.nan, dtype="<f4").tobytes()}, "a logprob is not a finite number"),
        ({"logprobs": np.full(5, -np.inf, dtype="<f4").tobytes()}, "a logprob is not a finite number"),
        ({"logprobs": b""}, "5 model tokens but 0 logprobs"),
        ({"tokens": b""}, "its spans do not cover its 0 tokens"),
        ({"reward": float("nan")}, "reward nan is not a finite number"),
        ({"spans": [pb.Span(length=0)]}, "a span has no tokens"),
        ({"policy": ""}, "PolicyId '' is not a name"),
    ],
)
def test_a_trajectory_that_breaks_a_rule_is_refused(change: dict[str, object], message: str) -> None:
    good = encode_trajectory(make.trajectory())
    fields = {field.name: value for field, value in good.ListFields()}
    with pytest.raises(InvalidInput, match=message):
        decode_trajectory(pb.Trajectory(**(fields | change)))


@pytest.mark.parametrize("text", ["{", "[1]", "7", "null", '"text"', "[" * 100_000])
def test_what_is_not_a_json_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="workflow of train is not"):
        decode_json(text, what="workflow of train")


def test_an_absent_json_object_is_an_empty_one() -> None:
    assert decode_json("", what="engine") == {}
    assert decode_json(encode_json({"kind": "ä", "n": 1}), what="engine") == {"kind": "ä", "n": 1}


def test_a_map_of_versions_gets_its_types() -> None:
    (policy, version), *_ = decode_versions({"solver": 3}).items()
    assert (type(policy), type(version)) == (PolicyId, Version)
