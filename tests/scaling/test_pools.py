"""Pools at one tick: patience, bounds, prices, targets so far and circuit breakers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astraflow.contract.fleet.recommendations import Mode
from astraflow.scaling.measurement.signals import LaunchSignals, NodeKind
from astraflow.scaling.options import PoolBudget, SizerOptions, Spec
from astraflow.scaling.rule.capacity import capacity_of
from astraflow.scaling.rule.pools import Pool, effective_prices, overdue_of, pools_of
from astraflow.scaling.rule.sizer import decide
from astraflow.scaling.rule.state import SizerState
from tests.scaling.make import AT, POOL, nodes, signals, spec, two_pools


def pool_of(ready: int = 4, *, pending: int = 0, age_s: float = 60.0, **more: Any) -> Pool:
    """Returns the pool. more: fields of the state; `launch`, `pool` and `breaker_s`."""
    launches = {POOL: more.pop("launch")} if "launch" in more else {}
    pool_spec = spec(pool=more.pop("pool", None), **{key: more.pop(key) for key in ("breaker_s",) if key in more})
    inputs = signals(nodes(ready, pending=pending, pending_age_s=age_s), launches=launches)
    (pool,) = pools_of(inputs, pool_spec, SizerState(**more), capacity_of(inputs, pool_spec.options))
    return pool


@pytest.mark.parametrize(
    ("delay_s", "patience_s"), [(20.0, 60.0), (100.0, 200.0), (450.0, 900.0), (600.0, 900.0), (1000.0, 1300.0)]
)
def test_orders_are_awaited_for_up_to_twice_the_usual_delay(delay_s: float, patience_s: float) -> None:
    assert pool_of(pool={"launch_delay_s": delay_s}).patience_s == patience_s


@pytest.mark.parametrize(("age_s", "overdue"), [(600.0, 0), (600.1, 3), (float("nan"), 3)])
def test_a_node_is_overdue_after_the_patience_of_its_pool(age_s: float, overdue: int) -> None:
    pool = pool_of(4, pending=3, age_s=age_s)
    assert (pool.patience_s, pool.ready, pool.pending, pool.overdue) == (600.0, 4, 3, overdue)
    assert pool.present == 7 - overdue
    late = overdue_of(signals(nodes(4, pending=3, pending_age_s=age_s)), [pool])
    assert late.tolist() == [False] * 4 + [overdue > 0] * 3


@pytest.mark.parametrize(("since_s", "expected"), [(600.0, 3), (600.5, 0)])
def test_missing_nodes_are_expected_until_the_patience_ends(since_s: float, expected: int) -> None:
    pool = pool_of(4, targets={POOL: 7}, present_nodes={POOL: 4}, missing_since={POOL: AT - since_s})
    assert (pool.target, pool.missing_s, pool.expected_nodes) == (7, since_s, expected)
    assert pool_of(4, targets={POOL: 3}, present_nodes={POOL: 4}).expected_nodes == 0


@pytest.mark.parametrize(
    ("present", "target", "previous", "now"),
    [
        (4, 4, 4, 4),
        (4, 7, 2, 7),  # two of five ordered nodes came
        (9, 7, 4, 9),  # two more than ordered
        (9, 7, 8, 8),  # two leave, and one joined
        (9, 7, 9, 7),  # two leave
        (6, 7, 5, 7),
    ],
)
def test_nodes_that_joined_without_an_order_count_for_the_target(
    present: int, target: int, previous: int, now: int
) -> None:
    state: dict[str, Any] = {"targets": {POOL: target}, "present_nodes": {POOL: previous}}
    assert pool_of(present, **state).target == now
    assert pool_of(present, pool={"mode": Mode.OFF}, **state).target == present
    assert pool_of(present).target == present


def test_starting_nodes_count_as_present_for_the_next_tick() -> None:
    state = decide(signals(nodes(4, pending=3)), spec(), SizerState()).state
    assert state.present_nodes == {POOL: 7}


@pytest.mark.parametrize(
    ("pool", "most", "orderable"),
    [
        ({}, 100, 5),
        ({"quota": 8}, 8, 5),
        ({"quota": 3}, 3, 3),
        ({"quota": 3, "min_nodes": 6}, 6, 6),
        ({"quota": 200}, 100, 5),
        ({"warm_nodes": 9}, 100, 9),
    ],
)
def test_a_pool_grows_within_its_bounds_and_one_by_one_after_failures(
    pool: dict[str, Any], most: int, orderable: int
) -> None:
    free, failed = pool_of(pool=pool), pool_of(pool=pool, launch=LaunchSignals(failures=3))
    assert (free.max_nodes, free.max_orderable_nodes, free.is_breaker_half_open) == (most, most, False)
    assert (failed.max_nodes, failed.max_orderable_nodes, failed.is_breaker_half_open) == (most, orderable, True)


@pytest.mark.parametrize(
    ("more", "is_open"),
    [
        ({}, False),
        ({"breaker_until": {POOL: AT}}, False),
        ({"breaker_until": {POOL: AT + 1}}, True),
        ({"launch": LaunchSignals(failures=3, failed_at=AT - 599.0)}, True),
        ({"launch": LaunchSignals(failures=3, failed_at=AT - 600.0)}, False),
        ({"launch": LaunchSignals(failures=2, failed_at=AT)}, False),
        ({"launch": LaunchSignals(failures=3)}, False),
    ],
    ids=str,
)
def test_repeated_failures_block_orders_for_a_while(more: dict[str, Any], is_open: bool) -> None:
    assert pool_of(**more).is_breaker_open == is_open


def test_prices_are_compared_for_a_unit_of_work() -> None:
    pool = replace(pool_of(), rate=0.5, price=2.0)
    assert (pool.effective_price, pool.effective_price_paid) == (4.0, 4.0)
    paid = replace(pool, money=PoolBudget(price_paid=3.0))
    assert (paid.effective_price, paid.effective_price_paid) == (4.0, 6.0)
    assert replace(pool, price=0.0).effective_price == 2.0
    assert replace(paid, money=PoolBudget(price_paid=0.0)).effective_price_paid == 2.0


def test_the_price_of_each_node_is_compared_by_its_own_rate() -> None:
    inputs = two_pools(2, 1)
    assert effective_prices(inputs, Spec(), capacity_of(inputs, SizerOptions())).tolist() == [32.0, 32.0, 64.0]
    unknown = signals(inputs.nodes, kinds=(NodeKind(pool=POOL), NodeKind(pool=POOL, hardware="b")))
    assert effective_prices(unknown, Spec(), capacity_of(unknown, SizerOptions())).tolist() == [32.0] * 3
    empty = signals(nodes(0), kinds=())
    assert effective_prices(empty, Spec(), capacity_of(empty, SizerOptions())).tolist() == []


def test_rate_and_price_of_a_further_node_are_those_of_most_nodes() -> None:
    kinds = (
        NodeKind(pool=POOL, hardware="old", price_per_hour=1.0),
        NodeKind(pool=POOL, hardware="new", price_per_hour=3.0),
    )
    table = nodes(8, rates=(0.25, 0.25) + (0.5,) * 6)
    inputs = signals(replace(table, kind=np.array([0, 0] + [1] * 6)), kinds=kinds)
    (pool,) = pools_of(inputs, spec(), SizerState(), capacity_of(inputs, spec().options))
    assert pool.price == 3.0
    assert pool.rate == pytest.approx((2 * 0.25 + 6 * 0.5) / 8, rel=0.02)


@pytest.mark.parametrize(
    ("mode", "may_grow", "may_shrink"),
    [(Mode.OFF, False, False), (Mode.ADVISE, True, True), (Mode.UP_ONLY, True, False), (Mode.ON, True, True)],
)
def test_modes_allow_orders_and_retirements(mode: Mode, may_grow: bool, may_shrink: bool) -> None:
    pool = pool_of(pool={"mode": mode})
    assert (pool.may_grow, pool.may_shrink) == (may_grow, may_shrink)
    assert not replace(pool, is_held=True).may_shrink
