"""Selection of the tests that `make test` leaves to `make test-long`, from a recording of the whole suite.

`tests/long_tests.txt` lists them: expensive tests whose branches cheaper tests cover as well.
`python -m tests.suite_selection` records and writes it; `tests/conftest.py` gives them the marker `long`, unless the
command line names a file.
"""

from collections.abc import Iterable
from pathlib import Path

LIST = Path(__file__).parents[1] / "long_tests.txt"


def read_list(path: Path = LIST) -> frozenset[str]:
    """Returns the ids of tests, with parameters or for all of them, without comments."""
    return frozenset(line for line in path.read_text().splitlines() if line and not line.startswith("#"))


def is_listed(test_id: str, listed: frozenset[str]) -> bool:
    """True if a test is listed, by itself or with all its parameters."""
    return test_id in listed or without_parameters(test_id) in listed


def without_parameters(test_id: str) -> str:
    """Returns the id of a test for all its parameters."""
    return test_id.partition("[")[0]


def shortened(moved: Iterable[str], all_ids: Iterable[str]) -> list[str]:
    """Returns the ids to list: one for a test of which all parameters are moved."""
    chosen = set(moved)
    kept = {without_parameters(test_id) for test_id in all_ids if test_id not in chosen}
    return sorted(
        {test_id if without_parameters(test_id) in kept else without_parameters(test_id) for test_id in chosen}
    )
