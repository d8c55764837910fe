"""The benchmark of the weight store, with a model too small to measure speed."""

from pathlib import Path

import pytest

from benchmarks.weight_store import catch_up, serving, uploads

ELEMENTS = 2**16


def test_a_direct_delta_over_several_versions_is_smaller_than_the_chain(tmp_path: Path) -> None:
    distance_1, distance_2, distance_8 = catch_up.measure(
        tmp_path, elements=ELEMENTS, learning_rate=1e-5, distances=(1, 2, 8)
    )

    assert distance_1.max_direct_delta_bytes < 1.1 * distance_1.chain_bytes
    assert distance_2.max_direct_delta_bytes < distance_2.chain_bytes
    assert distance_8.max_direct_delta_bytes < 0.7 * distance_8.chain_bytes


def test_versions_are_uploaded_by_each_method(tmp_path: Path) -> None:
    rows = uploads.measure(tmp_path, elements=ELEMENTS, learning_rate=1e-5, count=2)

    assert [row.sent for row in rows] == ["delta", "shared bits", "shared bits and delta"]


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.parametrize("replies", ["message", "raw"])
async def test_a_snapshot_is_fetched_in_ranges(replies: str) -> None:
    row = await serving.measure(replies, elements=ELEMENTS, streams=3, seconds=0.1)

    assert row.gb_per_s > 0
