"""Launch ids are ULIDs that increase even when the clock goes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maintainer.fleet.ledger.records import LaunchIds


@pytest.mark.long
@given(st.lists(st.floats(0, 4e9), min_size=2, max_size=50))
def test_launch_ids_increase_when_the_clock_goes_back(times: list[float]) -> None:
    ids = LaunchIds()
    launch_ids = [ids.next(now) for now in times]
    assert launch_ids == sorted(set(launch_ids))
    assert {len(launch_id) for launch_id in launch_ids} == {26}


def test_launch_ids_begin_with_the_time() -> None:
    assert LaunchIds(lambda _: 0).next(1_469_922_850.259).startswith("01ARZ3NDEK")
