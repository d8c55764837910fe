"""The demo's task is learned by engine and backend alone, also from weights that are some versions old."""

import pytest

from tests.system.learning import Learning, Setup


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("lag", [(0, 0), (2, 4)])
async def test_reversing_four_letters_is_learned(lag: tuple[int, int]) -> None:
    learned = await Learning(Setup(lag=lag)).run()

    assert learned.first < 0.45
    assert learned.last >= 0.9, f"{len(learned.rewards)} steps led to {learned.last:.2f}"
    assert learned.largest_gap < 1e-3
