import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.errors import InvalidInput
from astraflow.datasets.files.parquet import WindowShuffle

sizes = st.lists(st.integers(0, 12), min_size=1, max_size=9).filter(any)


@pytest.mark.long
@given(sizes=sizes, window=st.integers(1, 12), seed=st.integers(0, 9))
def test_every_row_appears_exactly_once_and_each_group_within_one_window(
    sizes: list[int], window: int, seed: int
) -> None:
    order = WindowShuffle(np.array(sizes), window=window, seed=seed)
    rows = [order.item(index) for index in range(sum(sizes))]
    group_of = np.repeat(np.arange(len(sizes)), sizes)
    visited = [int(group_of[row]) for row in rows]

    assert sorted(rows) == list(range(sum(sizes)))
    for group in set(visited):
        first, last = visited.index(group), len(visited) - 1 - visited[::-1].index(group)
        assert len(set(visited[first : last + 1])) <= window


def test_rows_can_be_read_in_any_order() -> None:
    sizes = np.array([5, 3, 8, 1])
    forwards, backwards = (WindowShuffle(sizes, window=2, seed=1) for _ in range(2))
    expected = [forwards.item(index) for index in range(17)]
    assert [backwards.item(index) for index in reversed(range(17))][::-1] == expected


def test_an_index_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        WindowShuffle(np.array([1, 2]), window=1, seed=0).item(3)
    assert caught.value.code == "dataset.index_out_of_range"
