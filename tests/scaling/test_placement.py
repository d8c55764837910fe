"""Orders fill the cheapest pools within every limit, and nodes are retired in one order."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astraflow.contract.fleet.recommendations import LimitInEffect, Mode
from astraflow.contract.ids import PoolId
from astraflow.scaling.measurement.lifecycle import Phase
from astraflow.scaling.measurement.signals import Signals
from astraflow.scaling.options import PoolBudget, PoolOptions, SizerOptions, Spec
from astraflow.scaling.rule.placement import DAY_S, dollars_per_hour, order_capacity, order_nodes, retirement_order
from astraflow.scaling.rule.pools import Pool
from tests.scaling.make import nodes, signals


def pool(name: str = "a", *, target: int = 0, rate: float = 1.0, price: float = 1.0, **more: Any) -> Pool:
    """Returns a pool whose nodes are all ready. more: fields of the pool; others are options."""
    names = Pool.__dataclass_fields__.keys()
    options: dict[str, Any] = {"mode": Mode.ON, "max_nodes": 100, "warm_nodes": 0}
    options |= {key: value for key, value in more.items() if key not in names}
    values: dict[str, Any] = {"ready": target, "pending": 0, "overdue": 0, "delay_s": 300.0}
    values |= {key: value for key, value in more.items() if key in names}
    return Pool(id=PoolId(name), options=PoolOptions(**options), target=target, rate=rate, price=price, **values)


def ordered(
    groups_per_s: float, *pools: Pool, at: float = 0.0, dollars_today: float = 0.0, **options: Any
) -> tuple[list[int], list[LimitInEffect]]:
    """Returns the targets after an order, and its limits."""
    before = sum(pool.target for pool in pools)
    spec = Spec(options=SizerOptions(**options))
    order = order_capacity(groups_per_s, pools, Signals(at=at, dollars_today=dollars_today), spec)
    assert order.nodes == sum(pool.target for pool in pools) - before
    return [pool.target for pool in pools], order.limited_by


@pytest.mark.parametrize(("groups_per_s", "target"), [(0.25, 0), (0.26, 1), (3.25, 3), (3.26, 4)])
def test_an_order_may_fall_short_by_a_quarter_of_a_node(groups_per_s: float, target: int) -> None:
    assert ordered(groups_per_s, pool()) == ([target], [])


def test_a_large_node_is_ordered_for_more_than_a_quarter_of_its_capacity() -> None:
    assert ordered(1.0, pool(rate=4.0), pool("b", rate=1.0)) == ([0, 0], [])
    assert ordered(1.1, pool(rate=4.0), pool("b", rate=1.0)) == ([1, 0], [])


def test_pools_without_a_rate_get_no_order_for_capacity() -> None:
    assert ordered(3.0, pool(rate=0.0)) == ([0], [])


def test_an_order_of_nodes_is_of_that_many_at_any_rate() -> None:
    ordered_pool = pool(rate=2.0, target=3)
    order = order_nodes(4, [ordered_pool], Signals(at=0.0), Spec())
    assert (ordered_pool.target, order.nodes, order.groups_per_s, order.limited_by) == (7, 4, 8.0, [])


@pytest.mark.parametrize(
    ("limited", "at_most", "limit"),
    [
        (pool(max_nodes=4), {}, LimitInEffect.MAX_NODES),
        (pool(), {"max_nodes": 4}, LimitInEffect.MAX_NODES),
        (pool(quota=4), {}, LimitInEffect.QUOTA),
        (pool(price=2.0), {"max_dollars_per_hour": 8.0}, LimitInEffect.DOLLARS_PER_HOUR),
        (pool(price=2.0, money=PoolBudget(dollars_per_hour=8.0)), {}, LimitInEffect.DOLLARS_PER_HOUR),
        (pool(price=2.0, money=PoolBudget(dollars_left_today=8.0)), {}, LimitInEffect.DOLLARS_PER_DAY),
    ],
    ids=["pool", "all pools", "quota", "hourly budget", "pool's hourly budget", "pool's daily budget"],
)
def test_orders_reach_a_limit_exactly_and_report_it(
    limited: Pool, at_most: dict[str, Any], limit: LimitInEffect
) -> None:
    assert ordered(9.0, replace(limited), **at_most) == ([4], [limit])
    assert ordered(4.0, replace(limited), **at_most) == ([4], []), "the last node that the limit allows is not limited"


def test_present_nodes_cost_what_is_paid_and_further_nodes_their_price() -> None:
    paid = pool(target=3, ready=2, pending=1, price=2.0, money=PoolBudget(price_paid=1.0))
    assert [paid.dollars_per_hour(count) for count in (2, 3, 5)] == [2.0, 3.0, 7.0]
    assert dollars_per_hour([paid, pool("b", target=2, price=3.0)]) == 9.0
    assert ordered(9.0, paid, max_dollars_per_hour=7.0)[0] == [5]


@pytest.mark.parametrize(
    ("at", "spent", "hourly", "target", "limit"),
    [
        (DAY_S - 7200, 10.0, None, 5, LimitInEffect.DOLLARS_PER_DAY),  # ten dollars for two hours
        (3 * DAY_S - 7200, 10.0, None, 5, LimitInEffect.DOLLARS_PER_DAY),
        (DAY_S - 7200, 10.0, 5.0, 5, LimitInEffect.DOLLARS_PER_HOUR),
        (DAY_S - 7200, 10.0, 4.0, 4, LimitInEffect.DOLLARS_PER_HOUR),
        (DAY_S - 7200, 21.0, None, 0, LimitInEffect.DOLLARS_PER_DAY),
        (DAY_S - 10, 19.5, None, 30, LimitInEffect.DOLLARS_PER_DAY),  # the last minute counts as a whole one
    ],
)
def test_the_rest_of_the_daily_budget_is_spread_until_midnight(
    at: float, spent: float, hourly: float | None, target: int, limit: LimitInEffect
) -> None:
    budgets: dict[str, Any] = {"max_dollars_per_day": 20.0, "max_dollars_per_hour": hourly}
    assert ordered(50.0, pool(), at=at, dollars_today=spent, **budgets) == ([target], [limit])


def test_the_cheapest_capacity_is_ordered_first() -> None:
    expensive, fast, equal = pool("a", price=2.0), pool("b", price=3.0, rate=2.0), pool("c", price=3.0, rate=2.0)
    assert ordered(2.0, expensive, equal, fast, pool_share=1.0) == ([0, 0, 1], [])


@pytest.mark.parametrize(("count", "targets"), [(3, [3, 0]), (4, [3, 1]), (10, [7, 3]), (11, [7, 4])])
def test_a_pool_holds_at_most_its_share_of_more_than_three_nodes(count: int, targets: list[int]) -> None:
    assert ordered(float(count), pool(), pool("b", price=2.0)) == (targets, [])


@pytest.mark.parametrize(
    "other",
    [{"mode": Mode.OFF}, {"is_breaker_open": True}, {"max_nodes": 0}, {"is_breaker_half_open": True, "target": 1}],
    ids=["off", "failing", "full", "launching one"],
)
def test_a_pool_holds_any_share_while_no_other_pool_takes_orders(other: dict[str, Any]) -> None:
    second = replace(pool("b", price=2.0, **other), ready=0)
    assert ordered(9.0, pool(), second)[0][0] == 9


def test_on_demand_nodes_come_first_up_to_their_minimum() -> None:
    spot, on_demand = pool(price=0.5, is_spot=True), pool("b", price=2.0)
    assert ordered(5.0, spot, on_demand, base_on_demand=2, pool_share=1.0) == ([3, 2], [])
    only_spot = (pool(is_spot=True), pool("b", price=2.0, is_spot=True))
    assert ordered(5.0, *only_spot, base_on_demand=2, pool_share=1.0) == ([5, 0], [])


def test_a_failing_pool_is_passed_over_and_reported() -> None:
    assert ordered(2.0, pool(is_breaker_open=True), pool("b", price=2.0)) == ([0, 2], [LimitInEffect.BREAKER])
    assert ordered(2.0, pool(mode=Mode.OFF), pool("b", price=2.0)) == ([0, 2], [])


def test_a_pool_whose_launches_failed_gets_one_node_at_a_time_without_a_reported_limit() -> None:
    assert ordered(5.0, pool(target=2, is_breaker_half_open=True)) == ([3], [])


def test_nodes_are_retired_pending_first_then_suspect_expensive_slow_and_young() -> None:
    table = replace(
        nodes(7, pending=1),
        ids=("oldest", "younger", "slower", "expensive", "suspect", "similar price", "leaving", "pending"),
        age_s=np.array([900.0, 800.0, 900.0, 900.0, 900.0, 950.0, 0.0, 5000.0]),
    )
    table = replace(table, phase=np.where(np.arange(8) == 6, Phase.DRAINING, table.phase))
    rates = np.array([1.0, 1.0, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0])
    prices = np.array([1.0, 1.0, 1.0, 2.0, 1.0, 1.1, 9.0, 1.0])
    rows = retirement_order(signals(table), rates, prices, {"suspect"})
    assert [table.ids[row] for row in rows] == [
        "pending",
        "suspect",
        "expensive",
        "slower",
        "younger",
        "oldest",
        "similar price",
    ]
