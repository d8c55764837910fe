"""The benchmark of the launch form measures checks by a real program."""

import pytest

from benchmarks.launch_form import measure

pytestmark = [pytest.mark.anyio, pytest.mark.long]


async def test_the_checks_of_a_form_are_measured() -> None:
    times = await measure("smoke", checks=3)
    assert set(times) == {"first form", "first change of a backend", "check, median", "check, p95"}
    assert min(times.values()) > 0
