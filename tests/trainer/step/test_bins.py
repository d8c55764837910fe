"""Bins of whole rows count their padding, and are as many on every rank."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.trainer.engines.base import Batching
from astraflow.trainer.step.bins import (
    bins_of_ranks,
    bins_of_rows,
    even_bins_of_rows,
    even_tree_bins,
    padded_width,
    tree_bins,
    tree_width,
)
from astraflow.trainer.step.packing import PackUnit
from tests.trainer.step.test_shares import COST, lognormal_batch, plan_of

LIMIT = 100


def row(number: int, width: int) -> PackUnit:
    return PackUnit(rows=(number,), shared=(0,), width=width, pairs=width, targets=1)


rows = st.lists(st.integers(0, 130), max_size=30).map(lambda widths: [row(*pair) for pair in enumerate(widths)])


@given(units=rows, extra=st.integers(0, 3))
def test_bins_of_rows_hold_every_row_within_the_limit(units: list[PackUnit], extra: int) -> None:
    needed = bins_of_rows(units, max_tokens=LIMIT)
    even = even_bins_of_rows(units, count=len(needed) + extra, max_tokens=LIMIT)

    for bins in (needed, even):
        assert sorted(unit.rows for units in bins for unit in units) == sorted(unit.rows for unit in units)
        assert all(len(units) <= 1 or padded_width(units) <= LIMIT for units in bins)
    assert len(even) == len(needed) + extra
    assert max(map(padded_width, even), default=0) <= max(map(padded_width, needed), default=0)


def group(number: int, prefix: int, longest: int) -> PackUnit:
    width = prefix + 2 * longest
    return replace(row(number, width), shared=(0, prefix), padded_width=width, rows=(number, -number))


groups = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), max_size=8).map(
    lambda sizes: [group(1000 + number, *size) for number, size in enumerate(sizes)]
)


@given(singles=rows, shared=groups, extra=st.integers(0, 3))
def test_bins_of_a_tree_hold_groups_or_rows_within_the_limit(
    singles: list[PackUnit], shared: list[PackUnit], extra: int
) -> None:
    units = [*singles, *shared]
    needed = tree_bins(units, max_tokens=LIMIT)
    even = even_tree_bins(units, count=len(needed) + extra, max_tokens=LIMIT)

    for bins in (needed, even):
        assert sorted(unit.rows for part in bins for unit in part) == sorted(unit.rows for unit in units)
        assert all(len(part) <= 1 or tree_width(part) <= LIMIT for part in bins)
        assert all(len({len(unit.rows) > 1 for unit in part}) <= 1 for part in bins)
    assert len(even) == len(needed) + extra


@given(divided=st.lists(rows, min_size=1, max_size=4))
def test_every_rank_has_as_many_bins(divided: list[list[PackUnit]]) -> None:
    bins = bins_of_ranks(divided, max_tokens=LIMIT, cost=COST, batching=Batching.ROWS)

    assert len({len(own) for own in bins}) == 1


def test_rows_of_similar_length_are_together() -> None:
    units = [row(number, width) for number, width in enumerate([2000, 100, 1900, 110, 90, 2100])]

    bins = bins_of_rows(units, max_tokens=16_384)

    assert sorted(sorted(unit.width for unit in part) for part in bins) == [[90, 100, 110], [1900, 2000, 2100]]


@pytest.mark.parametrize("data_ranks", [1, 4])
def test_a_plan_of_rows_is_padded_little_and_needs_what_packs_need(data_ranks: int) -> None:
    batch = lognormal_batch(rows=64, members=8, seed=1)

    packed = plan_of(batch, data_ranks=1).facts
    plan = plan_of(batch, data_ranks=data_ranks, batching=Batching.ROWS)

    assert plan.facts.tokens == packed.tokens
    assert plan.facts.padding / plan.facts.width < 0.1
    assert plan.facts.training_flops == packed.training_flops
    assert replace(plan.facts, imbalance=0).width > packed.width
    assert {len(share.optimizer_batches[0].packs) for share in plan.shares} == {
        len(plan.shares[0].optimizer_batches[0].packs)
    }
    assert all(
        segment.prefix_end == 0
        for share in plan.shares
        for pack in share.optimizer_batches[0].packs
        for segment in pack.segments
    )


@pytest.mark.parametrize(("members", "is_shared"), [(8, True), (2, False)])
def test_a_tree_shares_prompts_where_that_saves_two_passes(members: int, is_shared: bool) -> None:
    batch = lognormal_batch(rows=16 if is_shared else 4, members=members, seed=1)

    packed = plan_of(batch, data_ranks=1).facts
    plan = plan_of(batch, data_ranks=1, batching=Batching.TREE)

    segments = [segment for pack in plan.shares[0].optimizer_batches[0].packs for segment in pack.segments]
    assert any(segment.prefix_end for segment in segments) is is_shared
    assert plan.facts.tokens == packed.tokens
    assert plan.facts.training_flops == packed.training_flops
    assert 0 < plan.facts.padding < 0.2 * plan.facts.width
