"""Scales down: retires half of a lasting surplus if the remaining nodes can carry the load."""

from dataclasses import replace

import numpy as np

from astraflow.contract.fleet.recommendations import LimitInEffect, Reason
from astraflow.scaling.rule.balance import Balance, Tick
from astraflow.scaling.rule.placement import retirement_order
from astraflow.scaling.rule.pools import Pool, effective_prices

SETTLING_S = 1800.0
"""Time after a scale-down in which a smaller surplus suffices for the next, so that no half surplus remains."""

SETTLING_BAND_NODES = 1.5
"""Surplus in nodes above which another scale-down follows during `SETTLING_S`."""


def try_scale_down(tick: Tick, balance: Balance) -> bool:
    """Retires half of a lasting surplus. Returns whether there was a surplus to retire or to confirm."""
    options, before = tick.spec.options, tick.before
    settled_ratio = balance.target_ratio + SETTLING_BAND_NODES * balance.best_node_rate / balance.needed
    limit = settled_ratio + balance.noise / 2 if before.is_settling else balance.band_high + balance.noise
    is_high = balance.ratio > limit and balance.demand.stream.wait_share_600_s < options.wait_low
    if balance.ratio > limit and not is_high:
        tick.reasons.append(Reason.TRAINER_WAITED_RECENTLY)
    high_ticks = min(options.sustain_down_ticks, before.high_ticks + 1) if is_high else max(0, before.high_ticks - 1)
    tick.after = replace(tick.after, high_ticks=high_ticks)
    if before.is_settling and tick.at - before.acted_at > SETTLING_S:
        tick.after = replace(tick.after, is_settling=False)
    if not is_high or before.being_replaced or tick.victims:
        return False
    if high_ticks < options.sustain_down_ticks:
        tick.reasons.append(Reason.CONFIRMING_DOWN)
        return True
    tick.reasons.append(Reason.ABOVE_BAND)
    if len(tick.recent(before.scale_downs)) >= options.scale_downs_per_window or tick.is_just_after(before.scale_ups):
        tick.limited_by.append(LimitInEffect.ACTION_BUDGET)
        return True
    nodes = tick.signals.nodes
    max_victims = int(options.scale_down_share * np.count_nonzero(nodes.is_ready | nodes.is_pending))
    if retire(
        tick,
        max(1, max_victims),
        min_capacity=balance.target_ratio * balance.needed,
        surplus=balance.surplus * (1.0 if before.is_settling else 0.5),
    ):
        tick.after = replace(
            tick.after,
            scale_downs=(*tick.recent(before.scale_downs), tick.at),
            acted_at=tick.at,
            ratios=(),
            high_ticks=0,
            is_settling=True,
        )
    elif any(pool.is_held for pool in tick.pools):
        tick.limited_by.append(LimitInEffect.HOLD)
    else:
        tick.reasons.append(Reason.NEEDED_FOR_LOAD)
    return True


def retire(tick: Tick, max_nodes: int, *, min_capacity: float, surplus: float = float("inf")) -> int:
    """Chooses victims and lowers targets; returns the number of victims.

    min_capacity: groups a second that the remaining nodes must produce. surplus: capacity at which
    retiring stops, in groups a second.
    """
    nodes, signals = tick.signals.nodes, tick.signals
    prices = effective_prices(signals, tick.spec, tick.capacity)
    suspects = set(tick.before.suspects)
    pools = {pool.id: pool for pool in tick.pools}
    remaining = tick.capacity.of(nodes.is_ready)
    retired, count = 0.0, 0
    for row in retirement_order(signals, tick.capacity.node_rates, prices, suspects):
        if count >= max_nodes or retired >= surplus:
            break
        pool, rate = pools[signals.kinds[nodes.kind[row]].pool], float(tick.capacity.node_rates[row])
        if not pool.may_shrink or pool.target <= pool.options.floor or _is_last_on_demand(pool, tick):
            continue
        if nodes.is_ready[row]:
            if remaining - rate < min_capacity:
                continue
            remaining -= rate
        retired += rate
        count += 1
        pool.target -= 1
        tick.victims.append(nodes.ids[row])
    return count


def _is_last_on_demand(pool: Pool, tick: Tick) -> bool:
    if pool.options.is_spot:
        return False
    on_demand_nodes = sum(other.target for other in tick.pools if not other.options.is_spot)
    return on_demand_nodes <= tick.spec.options.base_on_demand
