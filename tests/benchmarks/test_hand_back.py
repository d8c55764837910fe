"""The benchmark works and distinguishes a saving from none."""

import pytest

from tests.benchmarks.partial_rollouts import measure


@pytest.mark.anyio
async def test_what_is_handed_back_is_not_thrown_away() -> None:
    kept, forgotten = [await measure(episodes=16, mean=200, seed=0, is_kept=is_kept) for is_kept in (True, False)]
    assert kept.discarded_tokens == 0
    assert forgotten.discarded_tokens > 0
    assert kept.trained > 16
