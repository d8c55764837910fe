"""What always holds: pools that fail get no orders, bounds are kept, and money is not overspent."""

from dataclasses import replace

import numpy as np

from astraflow.contract.advice import Cap, Mode, Reason
from astraflow.contract.ids import PoolId
from astraflow.scaling.placement import dollar_limit, dollars_per_hour
from astraflow.scaling.pools import Pool, overdue_of
from astraflow.scaling.tick import Tick

REMEMBERED_S = 4000.0
"""When a pool got no orders is of interest for so long."""


def forget_failed_orders(tick: Tick) -> None:
    """What never came is cancelled; where another pool can take it over, this one gets no orders for a while."""
    signals = tick.signals
    overdue = overdue_of(signals, tick.pools)
    tick.victims += [signals.nodes.ids[row] for row in np.flatnonzero(overdue)]
    shut = {pool: until for pool, until in tick.before.shut_until.items() if until > signals.at - REMEMBERED_S}
    for pool in tick.pools:
        patience_s = pool.delay_s if pool.options.is_spot else pool.patience_s
        if _has_come_after_all(pool, tick):
            shut.pop(pool.id, None)
            pool.is_shut = False
        elif pool.overdue or (pool.target > pool.present and pool.missing_s > patience_s):
            shut[pool.id] = max(shut.get(pool.id, 0.0), signals.at + tick.spec.options.breaker_s)
            pool.is_shut = True
    tick.after = replace(tick.after, shut_until=shut)
    if tick.spec.is_killed or not any(not pool.is_shut and pool.may_grow for pool in tick.pools):
        return
    for pool in tick.pools:
        if pool.is_shut and pool.target > pool.present and pool.options.mode is not Mode.OFF:
            pool.target = max(pool.present, pool.options.floor)
            tick.reasons.append(Reason.LAUNCHES_FAIL)
            # What was to be replaced by them stays.
            tick.before = replace(tick.before, leaving=frozenset())
            tick.after = replace(tick.after, leaving=frozenset())


def _has_come_after_all(pool: Pool, tick: Tick) -> bool:
    """All that was ordered is there, only late; and no other pool was to take over, so nothing was taken back."""
    launch = tick.signals.launches.get(pool.id)
    has_failed = launch is not None and launch.failures >= tick.spec.options.breaker_failures
    others = any(one.may_grow for one in tick.pools if one is not pool)
    return pool.target <= pool.present and not pool.overdue and not has_failed and not others


def bound(tick: Tick, started: dict[PoolId, int]) -> None:
    """Bounds always hold; the caps in dollars do too, down to the bounds."""
    for pool in tick.pools:
        if pool.options.mode is Mode.UP_ONLY and pool.target < started[pool.id]:
            pool.target = started[pool.id]
            tick.capped_by.append(Cap.MODE)
        if pool.is_held and pool.target < started[pool.id]:
            pool.target = started[pool.id]
            tick.capped_by.append(Cap.HOLD)
        bounded = min(max(pool.target, pool.options.floor), pool.most)
        if bounded != pool.target and not (pool.is_held and bounded < pool.target):
            pool.target = bounded
            tick.reasons.append(Reason.BOUND)
    if tick.spec.is_killed or Reason.STALE_INPUT in tick.reasons:
        return
    for pool in tick.pools:
        most, name = pool.money.limit
        while pool.dollars_per_hour(pool.target) > most + 1e-9 and pool.target > pool.options.floor and pool.may_fall:
            pool.target -= 1
            if name not in tick.capped_by:
                tick.capped_by.append(name)
    cap, name = dollar_limit(tick.signals, tick.spec)
    while dollars_per_hour(tick.pools) > cap + 1e-9:
        falling = [pool for pool in tick.pools if pool.target > pool.options.floor and pool.may_fall and pool.price > 0]
        if not falling:
            break
        max(falling, key=lambda pool: (pool.effective_price_paid, pool.id)).target -= 1
        if name not in tick.capped_by:
            tick.capped_by.append(name)
