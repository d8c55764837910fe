"""The benchmark works and distinguishes a saving from none."""

import pytest

from benchmarks.partial_rollouts import measure

pytestmark = pytest.mark.long


@pytest.mark.anyio
async def test_returned_rollouts_discard_no_tokens() -> None:
    kept, forgotten = [await measure(episodes=16, mean=200, seed=0, is_kept=is_kept) for is_kept in (True, False)]
    assert kept.discarded_tokens == 0
    assert forgotten.discarded_tokens > 0
    assert kept.trained > 16
