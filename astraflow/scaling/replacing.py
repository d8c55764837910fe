"""Replacing nodes that are slow, or dearer than need be: first others are ordered, and when those are up they go."""

from dataclasses import replace

import numpy as np

from astraflow.contract.advice import Reason
from astraflow.scaling.balance import BAND_LOW, Balance
from astraflow.scaling.growing import is_closed_for_now, is_short, order_more
from astraflow.scaling.placement import ROUNDING
from astraflow.scaling.pools import Pool
from astraflow.scaling.tick import Tick

SUSPECT_S = 300.0
"""A node that has been slow for so long is replaced."""

DEARER = 1.2
"""Nodes are swapped for cheaper ones when they cost more than this times as much for what they do."""


def replace_nodes(tick: Tick, balance: Balance) -> bool:
    """Order in place of nodes that are slow, or dearer than need be; these go when that is up."""
    marked = _to_replace(tick, balance)
    if not marked:
        return False
    rates = dict(zip(tick.signals.nodes.ids, tick.capacity.node, strict=True))
    lost = sum(float(rates[node]) for node in marked)
    lacking = balance.lacking + lost
    tick.reasons.append(Reason.REPLACING)
    if lacking > ROUNDING * tick.smallest_rate and not order_more(tick, balance, lacking):
        _make_room(tick, min(marked, key=lambda node: float(rates[node])))
        return True
    tick.after = replace(tick.after, leaving=tick.after.leaving | set(marked))
    return True


def _make_room(tick: Tick, node: str) -> None:
    """At a cap one goes before another comes, and the next when that is there."""
    is_awaited = any(pool.announced or pool.present > pool.ready for pool in tick.pools)
    if is_awaited or is_closed_for_now(tick) or not tick.capped_by:
        return
    kind = tick.signals.nodes.kind[tick.signals.nodes.ids.index(node)]
    pool = next(pool for pool in tick.pools if pool.id == tick.signals.kinds[kind].pool)
    if pool.target > pool.options.floor:
        tick.victims.append(node)
        pool.target -= 1


def retire_replaced(tick: Tick, balance: Balance) -> None:
    """What replaces them is up: they go, the slowest first, and never so that too little is left."""
    nodes = tick.signals.nodes
    rows = [row for row, node in enumerate(nodes.ids) if node in tick.before.leaving and nodes.is_ready[row]]
    leaving = {nodes.ids[row] for row in rows}
    if leaving != tick.before.leaving:
        tick.after = replace(tick.after, leaving=frozenset(leaving))
    if not rows:
        return
    if balance.ordered - balance.ready > balance.largest / 2:
        return  # not all of them are up
    left = balance.ready + float(tick.capacity.node[rows].sum())
    least = BAND_LOW * balance.needed
    pools = {pool.id: pool for pool in tick.pools}
    for row in sorted(rows, key=lambda row: float(tick.capacity.node[row])):
        left -= float(tick.capacity.node[row])
        if left < least:
            break
        tick.victims.append(nodes.ids[row])
        pool = pools[tick.signals.kinds[nodes.kind[row]].pool]
        pool.target = max(pool.options.floor, pool.target - 1)
    if tick.victims:
        tick.reasons.append(Reason.RETIRING)
        tick.after = replace(tick.after, leaving=frozenset(leaving - set(tick.victims)), acted_at=tick.at)


def _to_replace(tick: Tick, balance: Balance) -> list[str]:
    nodes, before = tick.signals.nodes, tick.before
    if before.leaving & set(nodes.ids) or len(tick.recent(before.ups)) >= tick.spec.options.ups_per_window:
        return []
    most = int(tick.spec.options.down_share * np.count_nonzero(nodes.is_ready | nodes.is_pending))
    slow = [node for node, since in before.suspects.items() if tick.at - since >= SUSPECT_S]
    suspect = {node for node, is_one in zip(nodes.ids, tick.capacity.is_suspect, strict=True) if is_one}
    pools = {pool.id: pool for pool in tick.pools}
    kinds = dict(zip(nodes.ids, nodes.kind, strict=True))
    slow = [node for node in slow if node in suspect and pools[tick.signals.kinds[kinds[node]].pool].may_fall]
    return (slow or _dear(tick, balance))[: max(1, most)]


def _dear(tick: Tick, balance: Balance) -> list[str]:
    """Nodes of the dearest pool, when a cheaper one has been in order for long enough and all is quiet."""
    nodes = tick.signals.nodes
    if is_short(tick, balance):
        return []  # at a cap: what works is not given away to save money
    if len(tick.pools) < 2 or nodes.is_pending.any() or tick.at - tick.after.acted_at < tick.spec.options.return_s:
        return []
    held = [pool for pool in tick.pools if pool.ready > pool.options.floor and pool.may_fall and pool.price > 0]
    open_ones = [pool for pool in tick.pools if _has_been_in_order(pool, tick) and pool.target < pool.most_ordered]
    if not held or not open_ones:
        return []
    dear = max(held, key=lambda pool: pool.effective_price_paid)
    cheap = min(open_ones, key=lambda pool: pool.effective_price)
    spare = dear.ready - dear.options.floor
    if not dear.options.is_spot:
        on_demand = sum(pool.ready for pool in tick.pools if not pool.options.is_spot)
        spare = min(spare, on_demand - tick.spec.options.base_on_demand)
    capacity = {pool.id: pool.target * pool.rate for pool in tick.pools}
    room = tick.spec.options.pool_share * sum(capacity.values()) - capacity[cheap.id]
    spare = min(spare, int(room / max(cheap.rate, 1e-12)), cheap.most_ordered - cheap.target)
    if spare < 1 or dear.effective_price_paid < DEARER * cheap.effective_price:
        return []
    kinds = [index for index, kind in enumerate(tick.signals.kinds) if kind.pool == dear.id]
    rows = np.flatnonzero(balance.stays & np.isin(nodes.kind, kinds))
    return [nodes.ids[row] for row in sorted(rows, key=lambda row: tick.capacity.node[row])[:spare]]


def _has_been_in_order(pool: Pool, tick: Tick) -> bool:
    launch = tick.signals.launches.get(pool.id)
    failed_at = launch.failed_at if launch is not None and launch.failed_at is not None else float("-inf")
    is_open = tick.before.shut_until.get(pool.id, float("-inf"))
    return (
        pool.may_grow
        and not pool.is_shut
        and pool.price > 0
        and tick.at - max(failed_at, is_open) >= tick.spec.options.return_s
    )
