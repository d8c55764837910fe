"""Spans, JSON fields, and invalid messages."""

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.wire.codecs.common import (
    decode_json,
    decode_spans,
    decode_versions,
    encode_json,
    encode_spans,
)
from tests import make
from tests.errors import raises_code


def test_version_zero_round_trips() -> None:
    spans = make.trajectory(version=0).spans
    assert decode_spans(encode_spans(spans)) == spans


@pytest.mark.parametrize("text", ["{", "[1]", "7", "null", '"text"', "[" * 100_000])
def test_a_value_that_is_not_a_json_object_is_refused(text: str) -> None:
    with raises_code(InvalidInput, "message.invalid_json", "workflow of train"):
        decode_json(text, what="workflow of train")


def test_an_absent_json_object_decodes_to_an_empty_one() -> None:
    assert decode_json("", what="engine") == {}
    assert decode_json(encode_json({"kind": "ä", "n": 1}), what="engine") == {"kind": "ä", "n": 1}


def test_a_map_of_versions_decodes_to_ids_and_versions() -> None:
    (policy, version), *_ = decode_versions({"solver": 3}).items()
    assert (type(policy), type(version)) == (PolicyId, Version)
