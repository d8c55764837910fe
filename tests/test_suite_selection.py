"""tests/long_tests.txt names tests that exist, and the selection keeps what covers most per second."""

import re

import numpy as np
import numpy.typing as npt
import pytest

from tests.suite_selection import is_listed, read_list, shortened, without_parameters
from tests.suite_selection.__main__ import ROOT, Recording, moved_tests, owner_of

DEFINITION = re.compile(r"def (test_\w+)")


def test_every_listed_test_exists() -> None:
    listed = read_list()
    defined = {name for path in (ROOT / "tests").rglob("*.py") for name in DEFINITION.findall(path.read_text())}
    missing = [
        test_id
        for test_id in listed
        if not (ROOT / test_id.partition("::")[0]).is_file()
        or without_parameters(test_id).rpartition("::")[2] not in defined | {"runTest"}  # hypothesis has the latter
    ]
    assert len(listed) > 500
    assert missing == []


def test_a_test_is_listed_by_itself_or_with_all_its_parameters() -> None:
    ids = ["a.py::test_x[1]", "a.py::test_x[2]", "a.py::test_y[1]", "a.py::test_y[2]", "a.py::test_z"]

    listed = frozenset(shortened(["a.py::test_x[1]", "a.py::test_x[2]", "a.py::test_y[2]"], ids))

    assert listed == {"a.py::test_x", "a.py::test_y[2]"}
    assert [is_listed(test_id, listed) for test_id in ids] == [True, True, False, True, False]


def test_tests_are_listed_that_add_little_to_cheaper_ones() -> None:
    def numbers(*bounds: int) -> npt.NDArray[np.int32]:
        return np.arange(*bounds, dtype=np.int32)

    recording = Recording(
        cost_s={
            "cheap": 0.1,
            "wide": 40.0,
            "quick": 5.0,
            "covered": 9.0,
            "little": 30.0,
            "tests/system/test_demo.py::a": 60.0,
        },
        branches={
            "": numbers(0, 10),
            "cheap": numbers(10, 100),
            "quick": numbers(100, 110),
            "wide": numbers(100, 140),
            "covered": numbers(0, 100),
            "little": numbers(135, 150),
        },
        count=150,
    )

    assert sorted(moved_tests(recording)) == ["covered", "little"]


@pytest.mark.parametrize(
    ("context", "test_id"),
    [
        ("t.py::a[x|y]|run", "t.py::a[x|y]"),
        ("t.py::a[x|y] (call)", "t.py::a[x|y]"),
        ("t.py::b (setup)|t.py::a[x|y]", "t.py::a[x|y]"),
        ("|t.py::b|teardown", "t.py::b"),
        ("", ""),
    ],
)
def test_a_context_of_coverage_names_its_test(context: str, test_id: str) -> None:
    assert owner_of(context, {"t.py::a[x|y]": 1.0, "t.py::b": 1.0}) == test_id
