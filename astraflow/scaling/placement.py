"""Which pools get orders, and which nodes go first: the cheapest capacity in, the dearest out, inside every cap."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from astraflow.contract.advice import Cap
from astraflow.scaling.options import Spec
from astraflow.scaling.pools import Pool
from astraflow.scaling.signals import Floats, Signals

ROUNDING = 0.25
"""So much of a node may be missing from what an order aims at."""

DAY_S = 86_400.0


@dataclass(slots=True)
class Placed:
    """What came of an order."""

    nodes: int = 0
    groups_per_s: float = 0.0
    capped_by: list[Cap] = field(default_factory=list)


def order(groups_per_s: float, pools: Sequence[Pool], signals: Signals, spec: Spec) -> Placed:
    """Raise targets until so much capacity is ordered, the cheapest pools first; the caps say what is left out."""
    placed = Placed()
    while True:
        rates = [pool.rate for pool in pools if pool.rate > 0]
        if not rates or groups_per_s - placed.groups_per_s <= ROUNDING * min(rates):
            return placed
        pool = _next_pool(pools, signals, spec, placed)
        if pool is None or groups_per_s - placed.groups_per_s <= ROUNDING * pool.rate:
            return placed
        pool.target += 1
        placed.nodes += 1
        placed.groups_per_s += pool.rate


def order_nodes(count: int, pools: Sequence[Pool], signals: Signals, spec: Spec) -> Placed:
    """The same for a number of nodes, whatever they do."""
    placed = Placed()
    while placed.nodes < count and (pool := _next_pool(pools, signals, spec, placed)) is not None:
        pool.target += 1
        placed.nodes += 1
        placed.groups_per_s += pool.rate
    return placed


def dollars_per_hour(pools: Sequence[Pool]) -> float:
    """Of the targets."""
    return sum(pool.dollars_per_hour(pool.target) for pool in pools)


def dollar_limit(signals: Signals, spec: Spec) -> tuple[float, Cap]:
    """Dollars an hour above which nodes are retired, and by which cap: none when the day's money is spent."""
    daily, hourly = spec.options.max_dollars_per_day, spec.options.max_dollars_per_hour
    if daily is not None and signals.dollars_today >= daily:
        return 0.0, Cap.DOLLARS_PER_DAY
    return float("inf") if hourly is None else hourly, Cap.DOLLARS_PER_HOUR


def dollar_cap(signals: Signals, spec: Spec) -> tuple[float, Cap]:
    """Dollars an hour up to which more is ordered, and by which cap: what is left of the day lasts until midnight."""
    hourly = float("inf") if spec.options.max_dollars_per_hour is None else spec.options.max_dollars_per_hour
    if spec.options.max_dollars_per_day is None:
        return hourly, Cap.DOLLARS_PER_HOUR
    hours_left = max(DAY_S - signals.at % DAY_S, 60.0) / 3600
    daily = max(0.0, spec.options.max_dollars_per_day - signals.dollars_today) / hours_left
    return (hourly, Cap.DOLLARS_PER_HOUR) if hourly <= daily else (daily, Cap.DOLLARS_PER_DAY)


def by_dearness(signals: Signals, rates: Floats, prices: Floats, suspects: set[str]) -> list[int]:
    """Rows of nodes in the order in which they go: pending, flagged, dearest for what they do, slowest, youngest."""
    nodes = signals.nodes
    alive = np.flatnonzero(nodes.is_pending | nodes.is_ready)
    flagged = np.array([nodes.ids[row] in suspects for row in alive], np.bool_)
    # Rates waver by chance; prices of nodes that do about the same are the same.
    rounded = np.round(np.log(prices[alive]) / 0.25)
    keys = (nodes.age_s[alive], rates[alive], -rounded, ~flagged, ~nodes.is_pending[alive])
    return [int(row) for row in alive[np.lexsort(keys)]]


def _next_pool(pools: Sequence[Pool], signals: Signals, spec: Spec, placed: Placed) -> Pool | None:
    """The cheapest that may take one more; what stood in the way of the others is noted."""
    cap, name = dollar_cap(signals, spec)
    cost, total = dollars_per_hour(pools), sum(pool.target for pool in pools)
    refused: list[Cap] = []
    chosen = None
    for pool in sorted(pools, key=lambda pool: (pool.effective_price, pool.id)):
        if not pool.may_grow:
            continue
        if pool.is_shut:
            refused.append(Cap.BREAKER)
        elif total >= spec.options.max_nodes or pool.target >= pool.options.max_nodes:
            refused.append(Cap.MAX_NODES)
        elif cost + pool.dollars_per_hour(pool.target + 1) - pool.dollars_per_hour(pool.target) > cap + 1e-9:
            refused.append(name)
        elif pool.dollars_per_hour(pool.target + 1) > pool.money.cap[0] + 1e-9:
            refused.append(pool.money.cap[1])
        elif pool.target >= pool.most_ordered:
            refused += [] if pool.is_on_trial else [Cap.QUOTA]
        elif not _is_too_much_in_one(pool, pools, spec):
            chosen = pool
            break
    placed.capped_by += [cap for cap in refused if cap not in placed.capped_by]
    return chosen


def _is_too_much_in_one(pool: Pool, pools: Sequence[Pool], spec: Spec) -> bool:
    """Of several pools in order none holds nearly all, unless the others are full; on-demand has its floor."""
    others = [
        one for one in pools if one is not pool and not one.is_shut and one.may_grow and one.target < one.most_ordered
    ]
    if not others:
        return False
    if pool.options.is_spot and _on_demand(pools) < spec.options.base_on_demand:
        return any(not one.options.is_spot for one in others)
    held = {one.id: one.target * one.rate for one in pools}
    total = sum(held.values()) + pool.rate
    return total > 3 * pool.rate and held[pool.id] + pool.rate > spec.options.pool_share * total


def _on_demand(pools: Sequence[Pool]) -> int:
    return sum(pool.target for pool in pools if not pool.options.is_spot)
