"""Limits that always apply: no orders for failing pools, bounds of pools, and budgets."""

from dataclasses import replace

import numpy as np

from astraflow.contract.fleet.recommendations import LimitInEffect, Mode, Reason
from astraflow.contract.ids import PoolId
from astraflow.scaling.rule.balance import Tick
from astraflow.scaling.rule.placement import dollars_per_hour, retirement_dollar_limit
from astraflow.scaling.rule.pools import Pool, overdue_of

BREAKER_HISTORY_S = 4000.0
"""Time for which the end of an open circuit breaker is kept. Seconds."""


def pause_failing_pools(tick: Tick) -> None:
    """Cancels overdue orders and, where another pool can take them over, blocks orders to the pool for a while."""
    signals = tick.signals
    overdue = overdue_of(signals, tick.pools)
    tick.victims += [signals.nodes.ids[row] for row in np.flatnonzero(overdue)]
    breaker_until = {
        pool: until for pool, until in tick.before.breaker_until.items() if until > signals.at - BREAKER_HISTORY_S
    }
    for pool in tick.pools:
        patience_s = pool.delay_s if pool.options.is_spot else pool.patience_s
        if _has_recovered(pool, tick):
            breaker_until.pop(pool.id, None)
            pool.is_breaker_open = False
        elif pool.overdue or (pool.target > pool.present and pool.missing_s > patience_s):
            breaker_until[pool.id] = signals.at + tick.spec.options.breaker_s
            pool.is_breaker_open = True
    tick.after = replace(tick.after, breaker_until=breaker_until)
    if tick.spec.is_kill_switch_on or not any(not pool.is_breaker_open and pool.may_grow for pool in tick.pools):
        return
    for pool in tick.pools:
        if pool.is_breaker_open and pool.target > pool.present and pool.options.mode is not Mode.OFF:
            pool.target = max(pool.present, pool.options.floor)
            tick.reasons.append(Reason.LAUNCHES_FAILING)
            # Nodes that the missing orders were to replace stay.
            tick.before = replace(tick.before, being_replaced=frozenset())
            tick.after = replace(tick.after, being_replaced=frozenset())


def _has_recovered(pool: Pool, tick: Tick) -> bool:
    """Returns whether all orders arrived late and no other pool could have taken them over, so none was cancelled."""
    launch = tick.signals.launches.get(pool.id)
    has_failed = launch is not None and launch.failures >= tick.spec.options.breaker_failures
    has_alternative = any(other.may_grow for other in tick.pools if other is not pool)
    return pool.target <= pool.present and not pool.overdue and not has_failed and not has_alternative


def apply_limits(tick: Tick, started: dict[PoolId, int]) -> None:
    """Applies modes, holds and bounds to the targets, then the budgets down to the lower bounds."""
    for pool in tick.pools:
        if pool.options.mode is Mode.UP_ONLY and pool.target < started[pool.id]:
            pool.target = started[pool.id]
            tick.limited_by.append(LimitInEffect.MODE)
        if pool.is_held and pool.target < started[pool.id]:
            pool.target = started[pool.id]
            tick.limited_by.append(LimitInEffect.HOLD)
        bounded_target = min(max(pool.target, pool.options.floor), pool.max_nodes)
        if bounded_target != pool.target and not (pool.is_held and bounded_target < pool.target):
            pool.target = bounded_target
            tick.reasons.append(Reason.POOL_BOUNDS)
    if tick.spec.is_kill_switch_on or Reason.STALE_INPUT in tick.reasons:
        return
    for pool in tick.pools:
        pool_limit, limit = pool.money.retirement_limit
        while (
            pool.dollars_per_hour(pool.target) > pool_limit + 1e-9
            and pool.target > pool.options.floor
            and pool.may_shrink
        ):
            pool.target -= 1
            if limit not in tick.limited_by:
                tick.limited_by.append(limit)
    fleet_limit, limit = retirement_dollar_limit(tick.signals, tick.spec)
    while dollars_per_hour(tick.pools) > fleet_limit + 1e-9:
        shrinkable = [
            pool for pool in tick.pools if pool.target > pool.options.floor and pool.may_shrink and pool.price > 0
        ]
        if not shrinkable:
            break
        max(shrinkable, key=lambda pool: (pool.effective_price_paid, pool.id)).target -= 1
        if limit not in tick.limited_by:
            tick.limited_by.append(limit)
