"""Replaces slow or overpriced nodes: orders new nodes first and retires the old nodes when the new nodes are ready."""

from dataclasses import replace

import numpy as np

from astraflow.contract.fleet.recommendations import Reason
from astraflow.scaling.rule.balance import BAND_LOW, Balance, Tick
from astraflow.scaling.rule.placement import ROUNDING
from astraflow.scaling.rule.pools import Pool
from astraflow.scaling.rule.scale_up import is_short, is_temporarily_limited, order_within_budget

SUSPECT_S = 300.0
"""Time for which a node must be slow before it is replaced. Seconds."""

SWAP_PRICE_RATIO = 1.2
"""Ratio of prices per unit of work above which nodes are replaced by cheaper nodes."""


def replace_nodes(tick: Tick, balance: Balance) -> bool:
    """Orders replacements for slow or overpriced nodes. Returns whether there are any to replace."""
    outgoing = _to_replace(tick, balance)
    if not outgoing:
        return False
    rates = dict(zip(tick.signals.nodes.ids, tick.capacity.node_rates, strict=True))
    outgoing_rate = sum(float(rates[node]) for node in outgoing)
    missing_rate = balance.shortfall + outgoing_rate
    tick.reasons.append(Reason.REPLACING)
    if missing_rate > ROUNDING * tick.smallest_rate and not order_within_budget(tick, balance, missing_rate):
        _retire_before_replacement(tick, min(outgoing, key=lambda node: float(rates[node])))
        return True
    tick.after = replace(tick.after, being_replaced=tick.after.being_replaced | set(outgoing))
    return True


def _retire_before_replacement(tick: Tick, node: str) -> None:
    """Retires a node before its replacement arrives, where a limit allows no further node; one at a time."""
    is_awaited = any(pool.expected_nodes or pool.present > pool.ready for pool in tick.pools)
    if is_awaited or is_temporarily_limited(tick) or not tick.limited_by:
        return
    kind = tick.signals.nodes.kind[tick.signals.nodes.ids.index(node)]
    pool = next(pool for pool in tick.pools if pool.id == tick.signals.kinds[kind].pool)
    if pool.target > pool.options.floor:
        tick.victims.append(node)
        pool.target -= 1


def retire_replaced(tick: Tick, balance: Balance) -> None:
    """Retires replaced nodes whose replacements are ready, slowest first, while enough capacity remains."""
    nodes = tick.signals.nodes
    rows = [row for row, node in enumerate(nodes.ids) if node in tick.before.being_replaced and nodes.is_ready[row]]
    being_replaced = {nodes.ids[row] for row in rows}
    if being_replaced != tick.before.being_replaced:
        tick.after = replace(tick.after, being_replaced=frozenset(being_replaced))
    if not rows:
        return
    if balance.ordered - balance.ready > balance.best_node_rate / 2:
        return  # not all replacements are ready
    remaining = balance.ready + float(tick.capacity.node_rates[rows].sum())
    required = BAND_LOW * balance.needed
    pools = {pool.id: pool for pool in tick.pools}
    for row in sorted(rows, key=lambda row: float(tick.capacity.node_rates[row])):
        remaining -= float(tick.capacity.node_rates[row])
        if remaining < required:
            break
        tick.victims.append(nodes.ids[row])
        pool = pools[tick.signals.kinds[nodes.kind[row]].pool]
        pool.target = max(pool.options.floor, pool.target - 1)
    if tick.victims:
        tick.reasons.append(Reason.RETIRING)
        tick.after = replace(tick.after, being_replaced=frozenset(being_replaced - set(tick.victims)), acted_at=tick.at)


def _to_replace(tick: Tick, balance: Balance) -> list[str]:
    nodes, before = tick.signals.nodes, tick.before
    if (
        before.being_replaced & set(nodes.ids)
        or len(tick.recent(before.scale_ups)) >= tick.spec.options.scale_ups_per_window
    ):
        return []
    max_nodes = int(tick.spec.options.scale_down_share * np.count_nonzero(nodes.is_ready | nodes.is_pending))
    slow = [node for node, since in before.suspects.items() if tick.at - since >= SUSPECT_S]
    suspect = {node for node, is_suspect in zip(nodes.ids, tick.capacity.is_suspect, strict=True) if is_suspect}
    pools = {pool.id: pool for pool in tick.pools}
    kinds = dict(zip(nodes.ids, nodes.kind, strict=True))
    slow = [node for node in slow if node in suspect and pools[tick.signals.kinds[kinds[node]].pool].may_shrink]
    return (slow or _overpriced_nodes(tick, balance))[: max(1, max_nodes)]


def _overpriced_nodes(tick: Tick, balance: Balance) -> list[str]:
    """Returns nodes of the most expensive pool, if a cheaper pool has been healthy and no action is recent."""
    nodes = tick.signals.nodes
    if is_short(tick, balance):
        return []  # at a limit: a working node is not retired to save money
    if (
        len(tick.pools) < 2
        or nodes.is_pending.any()
        or tick.at - tick.after.acted_at < tick.spec.options.swap_back_after_s
    ):
        return []
    shrinkable = [pool for pool in tick.pools if pool.ready > pool.options.floor and pool.may_shrink and pool.price > 0]
    growable = [pool for pool in tick.pools if _has_been_healthy(pool, tick) and pool.target < pool.max_orderable_nodes]
    if not shrinkable or not growable:
        return []
    expensive = max(shrinkable, key=lambda pool: pool.effective_price_paid)
    cheap = min(growable, key=lambda pool: pool.effective_price)
    spare = expensive.ready - expensive.options.floor
    if not expensive.options.is_spot:
        on_demand = sum(pool.ready for pool in tick.pools if not pool.options.is_spot)
        spare = min(spare, on_demand - tick.spec.options.base_on_demand)
    capacity = {pool.id: pool.target * pool.rate for pool in tick.pools}
    free_capacity = tick.spec.options.pool_share * sum(capacity.values()) - capacity[cheap.id]
    spare = min(spare, int(free_capacity / max(cheap.rate, 1e-12)), cheap.max_orderable_nodes - cheap.target)
    if spare < 1 or expensive.effective_price_paid < SWAP_PRICE_RATIO * cheap.effective_price:
        return []
    kinds = [index for index, kind in enumerate(tick.signals.kinds) if kind.pool == expensive.id]
    rows = np.flatnonzero(balance.is_staying & np.isin(nodes.kind, kinds))
    return [nodes.ids[row] for row in sorted(rows, key=lambda row: tick.capacity.node_rates[row])[:spare]]


def _has_been_healthy(pool: Pool, tick: Tick) -> bool:
    launch = tick.signals.launches.get(pool.id)
    failed_at = launch.failed_at if launch is not None and launch.failed_at is not None else float("-inf")
    breaker_until = tick.before.breaker_until.get(pool.id, float("-inf"))
    return (
        pool.may_grow
        and not pool.is_breaker_open
        and pool.price > 0
        and tick.at - max(failed_at, breaker_until) >= tick.spec.options.swap_back_after_s
    )
