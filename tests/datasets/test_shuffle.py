import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.errors import InvalidInput
from astraflow.datasets.shuffle import Shuffle


@pytest.mark.long
@given(size=st.integers(1, 300), seed=st.integers(0, 50))
def test_every_item_appears_exactly_once(size: int, seed: int) -> None:
    order = Shuffle(size, seed=seed)

    assert sorted(order.item(index) for index in range(size)) == list(range(size))


@given(size=st.integers(10**20, 10**40), position=st.integers(0, 10**20 - 1))
def test_huge_orders_need_no_memory(size: int, position: int) -> None:
    assert 0 <= Shuffle(size, seed=1).item(position) < size


def test_the_order_follows_from_the_seed() -> None:
    def order(seed: int) -> list[int]:
        shuffle = Shuffle(100, seed=seed)
        return [shuffle.item(index) for index in range(100)]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(1) != sorted(order(1))


def test_an_index_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        Shuffle(5, seed=0).item(5)
    assert caught.value.code == "dataset.index_out_of_range"
