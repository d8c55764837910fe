"""Ids are strings and numbers that reject invalid values."""

import copy
import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract import ids
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import MAX_VERSION, BatchId, GroupId, Name, NodeId, PolicyId, TaskId, Version
from tests.errors import raises_code

LETTERS = string.ascii_letters + string.digits
every_kind = pytest.mark.parametrize(
    "kind", [kind for kind in vars(ids).values() if isinstance(kind, type) and issubclass(kind, Name)]
)


@every_kind
@given(first=st.sampled_from(LETTERS), rest=st.text(LETTERS + "._:/-", max_size=127))
def test_valid_names_are_accepted(kind: type[Name], first: str, rest: str) -> None:
    name = kind(first + rest)
    assert name == first + rest
    assert type(name) is kind


@every_kind
@pytest.mark.parametrize(
    "text",
    ["", " ", "-a", ".a", "/a", ":a", "a b", "a\n", "\na", "a\0", "ä", "a,b", "a" * 129, "../a\\b", "<b>", "a?b"],
)
def test_invalid_names_are_refused_with_their_value(kind: type[Name], text: str) -> None:
    with raises_code(InvalidInput, "id.invalid_name", repr(text)) as caught:
        kind(text)
    assert str(caught.value).startswith(f"cannot use {text!r} as {kind.__name__}: ")
    assert caught.value.code == "id.invalid_name"


def test_a_long_invalid_name_is_shortened_in_the_error() -> None:
    with pytest.raises(InvalidInput) as refused:
        PolicyId("x" * 100_000)
    assert len(str(refused.value)) < 300


def test_ids_of_groups_tasks_and_batches_are_valid_names() -> None:
    assert GroupId("train:17").startswith("train")
    assert TaskId("train:17/3") == "train:17/3"
    assert BatchId("solver:250") == "solver:250"


def test_ids_behave_like_strings_and_integers() -> None:
    steps: dict[str, int] = {PolicyId("solver"): 1}
    assert steps["solver"] == 1
    assert json.dumps({"node": NodeId("n-1"), "version": Version(3)}) == '{"node": "n-1", "version": 3}'
    assert sorted([Version(3), Version(1)]) == [1, 3]


def test_ids_have_no_other_attributes() -> None:
    with pytest.raises(AttributeError):
        PolicyId("solver").note = "x"  # type: ignore[attr-defined]  # refused at run time


@given(st.integers(0, MAX_VERSION))
def test_nonnegative_versions_are_accepted(value: int) -> None:
    assert Version(value) == value
    assert type(Version(value)) is Version


@given(st.integers(min_value=MAX_VERSION + 1))
def test_versions_above_the_exact_integer_range_are_refused(value: int) -> None:
    with raises_code(InvalidInput, "id.invalid_version", str(MAX_VERSION)) as caught:
        Version(value)
    assert caught.value.code == "id.invalid_version"


@given(st.integers(max_value=-1))
def test_negative_versions_are_refused(value: int) -> None:
    with raises_code(InvalidInput, "id.invalid_version", str(value)) as caught:
        Version(value)
    assert caught.value.code == "id.invalid_version"


def test_ids_keep_their_type_when_copied() -> None:
    name, version = copy.deepcopy((PolicyId("solver"), Version(3)))
    assert (type(name), type(version)) == (PolicyId, Version)
