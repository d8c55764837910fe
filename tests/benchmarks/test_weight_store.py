"""The benchmark of the weight store, with a model so small that it says nothing about speed."""

from pathlib import Path

import pytest

from tests.benchmarks.weight_store import catching_up, serving, taking_in

ELEMENTS = 2**16


def test_one_delta_over_several_versions_is_smaller_than_the_chain(tmp_path: Path) -> None:
    one, two, eight = catching_up.measure(tmp_path, elements=ELEMENTS, learning_rate=1e-5, distances=(1, 2, 8))

    assert one.direct_bytes < 1.1 * one.chain_bytes
    assert two.direct_bytes < two.chain_bytes
    assert eight.direct_bytes < 0.7 * eight.chain_bytes


def test_versions_are_taken_in_each_way(tmp_path: Path) -> None:
    rows = taking_in.measure(tmp_path, elements=ELEMENTS, learning_rate=1e-5, count=2)

    assert [row.sent for row in rows] == ["delta", "shared bits", "shared bits and delta"]


@pytest.mark.anyio
@pytest.mark.parametrize("replies", ["message", "raw"])
async def test_a_snapshot_is_fetched_in_ranges(replies: str) -> None:
    row = await serving.measure(replies, elements=ELEMENTS, streams=3, seconds=0.1)

    assert row.gb_per_s > 0
