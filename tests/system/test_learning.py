"""Engine and backend alone learn the demo's task from rollouts of weights that are two to four versions old.

`test_demo.py` learns the same task with fresh weights, over the planes.
"""

import pytest

from tests.system.learning import Learning, Setup


@pytest.mark.long
@pytest.mark.anyio
async def test_training_with_stale_rollouts_learns_to_reverse_four_letters() -> None:
    learned = await Learning(Setup(lag=(2, 4))).run()

    assert learned.first < 0.45
    assert learned.last >= 0.9, f"{len(learned.rewards)} steps led to {learned.last:.2f}"
    assert learned.largest_mismatch < 1e-3
