"""The tree of rows by their tokens counts every beginning once, and gives an order that shares all of it."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.trainer.step.prefix_trees import PrefixTree

rows = st.lists(st.lists(st.integers(4, 5), min_size=1, max_size=7), min_size=1, max_size=9)


def arrays(tokens: list[list[int]]) -> dict[int, Int32Array]:
    return {3 * number: np.array(part, np.int32) for number, part in enumerate(tokens)}


@given(rows)
def test_the_order_shares_all_that_any_rows_share(tokens: list[list[int]]) -> None:
    order = PrefixTree.of(arrays(tokens)).order(lambda *_: True)

    beginnings = {tuple(part[:length]) for part in tokens for length in range(1, len(part) + 1)}
    assert sum(len(tokens[row // 3]) - shared for row, shared in order) == len(beginnings)


@given(rows, st.integers(1, 9))
def test_rows_share_with_the_row_before_them_what_kept_nodes_have(tokens: list[list[int]], fewest: int) -> None:
    order = PrefixTree.of(arrays(tokens)).order(lambda node, parts: (parts - 1) * (node.end - node.begin) >= fewest)

    assert sorted(row for row, _ in order) == [3 * number for number in range(len(tokens))]
    assert order[0][1] == 0
    for (before, _), (row, shared) in pairwise(order):
        first, second = tokens[before // 3], tokens[row // 3]
        assert first[:shared] == second[:shared]
        assert len(first) > shared or len(second) == shared


def test_rows_that_continue_each_other_are_ordered_without_recursion() -> None:
    order = PrefixTree.of({length: np.arange(length, dtype=np.int32) for length in range(1, 3000)}).order(
        lambda *_: True
    )

    assert order == [(2999, 0), *((length, length) for length in range(2998, 0, -1))]


def test_the_part_with_most_rows_is_continued_so_that_few_rows_continue_branches() -> None:
    long = list(range(100))
    sides = [[*long[:cut], 500 + cut] for cut in (20, 40, 60, 80)]

    order = PrefixTree.of(arrays([*sides, long])).order(lambda *_: True)

    assert order == [(12, 0), (9, 80), (6, 60), (3, 40), (0, 20)]
