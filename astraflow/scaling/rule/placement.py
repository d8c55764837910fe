"""Chooses the cheapest pools for orders and the most expensive nodes to retire, within all limits."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from astraflow.contract.fleet.recommendations import LimitInEffect
from astraflow.scaling.measurement.signals import Floats, Signals
from astraflow.scaling.options import Spec
from astraflow.scaling.rule.pools import Pool

ROUNDING = 0.25
"""Share of a node that an order may fall short of its goal."""

DAY_S = 86_400.0


@dataclass(slots=True)
class OrderResult:
    """Result of an order."""

    nodes: int = 0
    groups_per_s: float = 0.0
    limited_by: list[LimitInEffect] = field(default_factory=list)


def order_capacity(groups_per_s: float, pools: Sequence[Pool], signals: Signals, spec: Spec) -> OrderResult:
    """Raises targets by `groups_per_s` of capacity, cheapest pools first; returns the limits that were hit."""
    order = OrderResult()
    while True:
        rates = [pool.rate for pool in pools if pool.rate > 0]
        if not rates or groups_per_s - order.groups_per_s <= ROUNDING * min(rates):
            return order
        pool = _next_pool(pools, signals, spec, order)
        if pool is None or groups_per_s - order.groups_per_s <= ROUNDING * pool.rate:
            return order
        pool.target += 1
        order.nodes += 1
        order.groups_per_s += pool.rate


def order_nodes(count: int, pools: Sequence[Pool], signals: Signals, spec: Spec) -> OrderResult:
    """Raises targets by `count` nodes of any rate; otherwise like `order_capacity`."""
    order = OrderResult()
    while order.nodes < count and (pool := _next_pool(pools, signals, spec, order)) is not None:
        pool.target += 1
        order.nodes += 1
        order.groups_per_s += pool.rate
    return order


def dollars_per_hour(pools: Sequence[Pool]) -> float:
    """Returns the cost of the targets. Dollars an hour."""
    return sum(pool.dollars_per_hour(pool.target) for pool in pools)


def retirement_dollar_limit(signals: Signals, spec: Spec) -> tuple[float, LimitInEffect]:
    """Returns dollars an hour above which nodes are retired, and the limit; 0 when the daily budget is spent."""
    daily, hourly = spec.options.max_dollars_per_day, spec.options.max_dollars_per_hour
    if daily is not None and signals.dollars_today >= daily:
        return 0.0, LimitInEffect.DOLLARS_PER_DAY
    return float("inf") if hourly is None else hourly, LimitInEffect.DOLLARS_PER_HOUR


def order_dollar_limit(signals: Signals, spec: Spec) -> tuple[float, LimitInEffect]:
    """Returns dollars an hour for orders, and the limit that sets it. The daily budget lasts until midnight UTC."""
    hourly = float("inf") if spec.options.max_dollars_per_hour is None else spec.options.max_dollars_per_hour
    if spec.options.max_dollars_per_day is None:
        return hourly, LimitInEffect.DOLLARS_PER_HOUR
    remaining_hours = max(DAY_S - signals.at % DAY_S, 60.0) / 3600
    daily = max(0.0, spec.options.max_dollars_per_day - signals.dollars_today) / remaining_hours
    return (hourly, LimitInEffect.DOLLARS_PER_HOUR) if hourly <= daily else (daily, LimitInEffect.DOLLARS_PER_DAY)


def retirement_order(signals: Signals, rates: Floats, prices: Floats, suspects: set[str]) -> list[int]:
    """Returns rows in retirement order: pending, suspect, most expensive per unit of work, slowest, youngest."""
    nodes = signals.nodes
    alive = np.flatnonzero(nodes.is_pending | nodes.is_ready)
    is_suspect = np.array([nodes.ids[row] in suspects for row in alive], np.bool_)
    # Measured rates are noisy, so nodes at a similar price per unit of work count as equal.
    rounded = np.round(np.log(prices[alive]) / 0.25)
    keys = (nodes.age_s[alive], rates[alive], -rounded, ~is_suspect, ~nodes.is_pending[alive])
    return [int(row) for row in alive[np.lexsort(keys)]]


def _next_pool(pools: Sequence[Pool], signals: Signals, spec: Spec, order: OrderResult) -> Pool | None:
    """Returns the cheapest pool that can take another node, and records the limits of the pools before it."""
    dollar_limit, dollar_limit_kind = order_dollar_limit(signals, spec)
    current_cost, total = dollars_per_hour(pools), sum(pool.target for pool in pools)
    limits: list[LimitInEffect] = []
    chosen = None
    for pool in sorted(pools, key=lambda pool: (pool.effective_price, pool.id)):
        if not pool.may_grow:
            continue
        if pool.is_breaker_open:
            limits.append(LimitInEffect.BREAKER)
        elif total >= spec.options.max_nodes or pool.target >= pool.options.max_nodes:
            limits.append(LimitInEffect.MAX_NODES)
        elif (
            current_cost + pool.dollars_per_hour(pool.target + 1) - pool.dollars_per_hour(pool.target)
            > dollar_limit + 1e-9
        ):
            limits.append(dollar_limit_kind)
        elif pool.dollars_per_hour(pool.target + 1) > pool.money.order_limit[0] + 1e-9:
            limits.append(pool.money.order_limit[1])
        elif pool.target >= pool.max_orderable_nodes:
            limits += [] if pool.is_breaker_half_open else [LimitInEffect.QUOTA]
        elif not _exceeds_pool_share(pool, pools, spec):
            chosen = pool
            break
    order.limited_by += [limit for limit in limits if limit not in order.limited_by]
    return chosen


def _exceeds_pool_share(pool: Pool, pools: Sequence[Pool], spec: Spec) -> bool:
    """Returns whether a further node would give the pool too much of the capacity, or break the on-demand minimum."""
    others = [
        other
        for other in pools
        if other is not pool
        and not other.is_breaker_open
        and other.may_grow
        and other.target < other.max_orderable_nodes
    ]
    if not others:
        return False
    if pool.options.is_spot and _on_demand(pools) < spec.options.base_on_demand:
        return any(not other.options.is_spot for other in others)
    capacities = {other.id: other.target * other.rate for other in pools}
    total = sum(capacities.values()) + pool.rate
    return total > 3 * pool.rate and capacities[pool.id] + pool.rate > spec.options.pool_share * total


def _on_demand(pools: Sequence[Pool]) -> int:
    return sum(pool.target for pool in pools if not pool.options.is_spot)
