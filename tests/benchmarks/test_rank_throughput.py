"""Plans for several ranks are balanced and nearly without padding."""

import pytest

from benchmarks.rank_throughput import plan_facts

pytestmark = pytest.mark.long


@pytest.mark.parametrize("micro_batch_tokens", [4096, 16_384])
def test_rows_of_different_lengths_are_divided_evenly(micro_batch_tokens: int) -> None:
    imbalance, padding = plan_facts(micro_batch_tokens)

    assert 1.0 <= imbalance <= 1.02
    assert padding <= 0.01
