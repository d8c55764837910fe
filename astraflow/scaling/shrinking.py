"""Retiring nodes: half of what is too much, once that has lasted, if the rest can carry the load."""

from dataclasses import replace

import numpy as np

from astraflow.contract.advice import Cap, Reason
from astraflow.scaling.balance import Balance
from astraflow.scaling.placement import by_dearness
from astraflow.scaling.pools import Pool, effective_prices
from astraflow.scaling.tick import Tick

SETTLING_S = 1800.0
"""For so long after nodes were retired, the next ones go at less of a surplus, so that half a surplus does not stay."""

ROOMY_NODES = 1.5


def go_down(tick: Tick, balance: Balance) -> bool:
    """Retire half of what is too much, once that has lasted. Returns whether anything was to be done or confirmed."""
    options, before = tick.spec.options, tick.before
    roomy = balance.aim + ROOMY_NODES * balance.largest / balance.needed
    limit = roomy + balance.noise / 2 if before.is_settling else balance.band_high + balance.noise
    is_high = balance.ratio > limit and balance.demand.stream.wait_600_s < options.wait_low
    if balance.ratio > limit and not is_high:
        tick.reasons.append(Reason.WAITED_LATELY)
    high_ticks = min(options.sustain_down_ticks, before.high_ticks + 1) if is_high else max(0, before.high_ticks - 1)
    tick.after = replace(tick.after, high_ticks=high_ticks)
    if before.is_settling and tick.at - before.acted_at > SETTLING_S:
        tick.after = replace(tick.after, is_settling=False)
    if not is_high or before.leaving or tick.victims:
        return False
    if high_ticks < options.sustain_down_ticks:
        tick.reasons.append(Reason.CONFIRMING_DOWN)
        return True
    tick.reasons.append(Reason.ABOVE_BAND)
    if len(tick.recent(before.downs)) >= options.downs_per_window or tick.is_just_after(before.ups):
        tick.capped_by.append(Cap.ACTION_BUDGET)
        return True
    nodes = tick.signals.nodes
    most = int(options.down_share * np.count_nonzero(nodes.is_ready | nodes.is_pending))
    if retire(
        tick,
        max(1, most),
        least_capacity=balance.aim * balance.needed,
        spare=balance.spare * (1.0 if before.is_settling else 0.5),
    ):
        tick.after = replace(
            tick.after,
            downs=(*tick.recent(before.downs), tick.at),
            acted_at=tick.at,
            ratios=(),
            high_ticks=0,
            is_settling=True,
        )
    elif any(pool.is_held for pool in tick.pools):
        tick.capped_by.append(Cap.HOLD)
    else:
        tick.reasons.append(Reason.KEPT_TO_CARRY)
    return True


def retire(tick: Tick, most: int, *, least_capacity: float, spare: float = float("inf")) -> int:
    """Choose victims and lower targets; returns how many.

    least_capacity: groups a second that those who stay must produce. spare: capacity that is to go, at least.
    """
    nodes, signals = tick.signals.nodes, tick.signals
    prices = effective_prices(signals, tick.spec, tick.capacity)
    suspects = set(tick.before.suspects)
    pools = {pool.id: pool for pool in tick.pools}
    left = tick.capacity.of(nodes.is_ready)
    gone, count = 0.0, 0
    for row in by_dearness(signals, tick.capacity.node, prices, suspects):
        if count >= most or gone >= spare:
            break
        pool, rate = pools[signals.kinds[nodes.kind[row]].pool], float(tick.capacity.node[row])
        if not pool.may_fall or pool.target <= pool.options.floor or _is_last_on_demand(pool, tick):
            continue
        if nodes.is_ready[row]:
            if left - rate < least_capacity:
                continue
            left -= rate
        gone += rate
        count += 1
        pool.target -= 1
        tick.victims.append(nodes.ids[row])
    return count


def _is_last_on_demand(pool: Pool, tick: Tick) -> bool:
    if pool.options.is_spot:
        return False
    held = sum(one.target for one in tick.pools if not one.options.is_spot)
    return held <= tick.spec.options.base_on_demand
