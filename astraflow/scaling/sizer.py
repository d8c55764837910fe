"""How large each pool should be: capacity over demand in a dead band, confirmed by the trainer's wait.

A pure function of signals, spec and state: no clock, no network, no chance. Demand comes from how long steps compute,
capacity from how long nodes are busy, and neither from how many nodes there are, so that the loop is not closed through
them. Orders count as capacity at once, so that nothing is ordered twice while nodes start.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np

from astraflow.contract.advice import Cap, Mode, PoolAdvice, Reason
from astraflow.contract.ids import PoolId
from astraflow.scaling.balance import BAND_LOW, Balance, balance_of
from astraflow.scaling.capacity import Capacity, capacity_of
from astraflow.scaling.demand import demand_of
from astraflow.scaling.explain import advice_of
from astraflow.scaling.options import Spec
from astraflow.scaling.placement import ROUNDING, by_dearness, dollar_limit, dollars_per_hour, order, order_nodes
from astraflow.scaling.plain import VERSIONS, plain_total
from astraflow.scaling.pools import Pool, effective_prices, overdue_of, pools_of
from astraflow.scaling.signals import Signals
from astraflow.scaling.state import SizerState, Verdict

SILENT_TICKS = 3
SILENT_SHARE = 0.2
"""More nodes than this share without a beat for so many ticks: the rest of what is measured may be as old."""

STALE_STEPS, STALE_S = 5.0, 600.0
"""No step for so many usual steps, and for so long."""

BARELY = 0.03
"""Above the low edge by less than this, a trainer that waits decides."""

FAR_BELOW = 0.5
SETTLE_S = 300.0
"""After an action, the trim waits for its effect."""

SUSPECT_S = 300.0
DEARER = 1.2
"""Nodes are swapped for cheaper ones when they cost more than this times as much for what they do."""


@dataclass(slots=True)
class Tick:
    """One decision in the making."""

    signals: Signals
    spec: Spec
    before: SizerState
    capacity: Capacity
    pools: list[Pool]
    balance: Balance | None = None
    reasons: list[Reason] = field(default_factory=list)
    capped_by: list[Cap] = field(default_factory=list)
    victims: list[str] = field(default_factory=list)
    after: SizerState = field(default_factory=SizerState)
    policy: str = "sizer"

    @property
    def at(self) -> float:
        """Unix seconds."""
        return self.signals.at


def decide(signals: Signals, spec: Spec, state: SizerState) -> Verdict:
    """One tick: a target for each pool, with its reasons, and the state for the next tick."""
    capacity = capacity_of(signals, spec.options, usual=state.node_groups_per_s)
    pools = pools_of(signals, spec, state, capacity)
    tick = Tick(signals=signals, spec=spec, before=state, capacity=capacity, pools=pools, after=state)
    started = {pool.id: pool.target for pool in pools}
    if not state.targets:
        tick.after = replace(state, acted_at=signals.at)  # what was there first counts as an action of somebody
    _forget_failed_orders(tick)
    _move(tick)
    _bound(tick, started)
    tick.after = _remembered(tick)
    digest = signals.digest()
    advice = tuple(advice_of(pool, tick, started[pool.id], digest) for pool in pools)
    return Verdict(advice=advice, state=tick.after)


def _move(tick: Tick) -> None:
    signals, options = tick.signals, tick.spec.options
    if tick.spec.is_killed:
        tick.reasons.append(Reason.SWITCHED_OFF)
        tick.capped_by.append(Cap.KILL_SWITCH)
        return
    if signals.paused_s is not None:
        _pause(tick)
        return
    demand = demand_of(signals.streams)
    if _is_stale(tick, usual_s=demand.compute_s if demand else 0.0):
        tick.reasons.append(Reason.STALE_INPUT)
        return
    if options.policy == "plain" or not (demand and tick.capacity.is_measured):
        _follow_plain(tick, is_chosen=options.policy == "plain")
        return
    tick.balance = balance_of(
        signals, tick.spec, tick.before, demand=demand, capacity=tick.capacity, pools=tick.pools
    )
    tick.after = replace(
        tick.after,
        ratios=tick.balance.ratios,
        compute_s=demand.compute_s,
        is_short=tick.capacity.is_short,
        node_groups_per_s=tick.capacity.remembered,
    )
    if tick.balance.ordered - tick.balance.ready > tick.balance.largest / 2:
        tick.after = replace(tick.after, pending_at=tick.at)
    _retire_replaced(tick, tick.balance)
    if not (_go_up(tick, tick.balance) or _replace(tick, tick.balance) or _go_down(tick, tick.balance)):
        _trim(tick, tick.balance)
    if not tick.reasons:
        tick.reasons.append(Reason.INSIDE_BAND)


def _pause(tick: Tick) -> None:
    """The demand is frozen; a long pause leaves the warm nodes."""
    if (tick.signals.paused_s or 0.0) < tick.spec.options.idle_after_s:
        tick.reasons.append(Reason.PAUSED)
        return
    tick.reasons.append(Reason.IDLE)
    for pool in tick.pools:
        if pool.may_fall:
            pool.target = min(pool.target, pool.options.floor)


def _is_stale(tick: Tick, *, usual_s: float) -> bool:
    nodes, tick_s = tick.signals.nodes, tick.spec.options.tick_s
    heard = nodes.silent_s[nodes.is_ready]
    silent = np.count_nonzero(~(heard <= SILENT_TICKS * tick_s))
    if silent > SILENT_SHARE * heard.size:
        return True
    limit_s = max(STALE_STEPS * usual_s, STALE_S)
    # A trainer that waits for nodes makes no steps either; that is what nodes are ordered for.
    return any(stream.step_age_s > limit_s and stream.wait_300_s < 0.5 for stream in tick.signals.streams)


def _follow_plain(tick: Tick, *, is_chosen: bool) -> None:
    steps = sum(stream.steps for stream in tick.signals.streams)
    if not steps or not tick.signals.streams:
        tick.reasons.append(Reason.UNMEASURED)
        return
    tick.policy = "plain"
    tick.reasons.append(Reason.PLAIN_RULE if is_chosen else Reason.UNMEASURED)
    if steps - tick.before.plain_steps < VERSIONS:
        return
    have = sum(pool.target for pool in tick.pools)
    wanted = plain_total(have, tick.signals.streams)
    if wanted == have:
        return
    if Reason.PLAIN_RULE not in tick.reasons:
        tick.reasons.insert(0, Reason.PLAIN_RULE)
    tick.after = replace(tick.after, plain_steps=steps)
    if wanted > have:
        placed = order_nodes(wanted - have, tick.pools, tick.signals, tick.spec)
        tick.capped_by += placed.capped_by
    else:
        _retire(tick, have - wanted, least_capacity=0.0)


def _go_up(tick: Tick, balance: Balance) -> bool:
    """Order what is missing, once that is confirmed. Returns whether anything was to be done or confirmed."""
    options = tick.spec.options
    wait = balance.demand.stream.wait_300_s
    # Right after nodes were retired it takes more than noise to order others.
    noise = balance.noise * (3 if _recent(tick.before.downs, tick) else 1)
    is_below = balance.ratio < BAND_LOW - noise
    is_waited_for = (balance.ratio < BAND_LOW + BARELY and wait > options.wait_high) or (
        balance.ratio < BAND_LOW and wait > options.wait_low
    )
    low_ticks = tick.before.low_ticks + 1 if is_below or is_waited_for else 0
    tick.after = replace(tick.after, low_ticks=low_ticks)
    if not low_ticks or balance.lacking <= ROUNDING * _smallest_rate(tick.pools):
        return False
    is_far = balance.ratio < FAR_BELOW
    if low_ticks < options.sustain_up_ticks and not is_far:
        tick.reasons.append(Reason.CONFIRMING_UP)
        return True
    reason = Reason.FAR_BELOW if is_far else Reason.BELOW_BAND if is_below else Reason.TRAINER_WAITS
    tick.reasons.append(reason)
    _order(tick, balance, balance.lacking)
    return True


def _order(tick: Tick, balance: Balance, groups_per_s: float) -> int:
    """Within the budget of actions; returns how many nodes."""
    options = tick.spec.options
    if len(_recent(tick.before.ups, tick)) >= options.ups_per_window:
        tick.capped_by.append(Cap.ACTION_BUDGET)
        return 0
    placed = order(groups_per_s, tick.pools, tick.signals, tick.spec)
    tick.capped_by += [cap for cap in placed.capped_by if cap not in tick.capped_by]
    if placed.nodes:
        ratio = (balance.ordered + placed.groups_per_s) / balance.needed
        tick.after = replace(
            tick.after,
            ups=(*_recent(tick.before.ups, tick), tick.at),
            acted_at=tick.at,
            ratios=(ratio,),
            low_ticks=0,
            high_ticks=0,
            is_settling=False,
        )
    return placed.nodes


def _replace(tick: Tick, balance: Balance) -> bool:
    """Order in place of nodes that are slow, or dearer than need be; these go when that is up."""
    marked = _to_replace(tick, balance)
    if not marked:
        return False
    rates = {node: rate for node, rate in zip(tick.signals.nodes.ids, tick.capacity.node, strict=True)}
    lost = sum(float(rates[node]) for node in marked)
    lacking = balance.lacking + lost
    tick.reasons.append(Reason.REPLACING)
    if lacking > ROUNDING * _smallest_rate(tick.pools):
        caps = len(tick.capped_by)
        if not _order(tick, balance, lacking):
            if len(tick.capped_by) > caps and Cap.ACTION_BUDGET not in tick.capped_by:
                tick.victims.append(min(marked, key=lambda node: float(rates[node])))  # retire before launch
            return True
    tick.after = replace(tick.after, leaving=tick.after.leaving | set(marked))
    return True


def _to_replace(tick: Tick, balance: Balance) -> list[str]:
    nodes, before = tick.signals.nodes, tick.before
    if before.leaving & set(nodes.ids) or len(_recent(before.ups, tick)) >= tick.spec.options.ups_per_window:
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
    if len(tick.pools) < 2 or nodes.is_pending.any() or tick.at - tick.before.acted_at < tick.spec.options.return_s:
        return []
    held = [pool for pool in tick.pools if pool.ready > pool.options.floor and pool.may_fall and pool.price > 0]
    open_ones = [pool for pool in tick.pools if _has_been_in_order(pool, tick) and pool.target < pool.most]
    if not held or not open_ones:
        return []
    dear = max(held, key=lambda pool: pool.effective_price)
    cheap = min(open_ones, key=lambda pool: pool.effective_price)
    spare = dear.ready - dear.options.floor
    if not dear.options.is_spot:
        on_demand = sum(pool.ready for pool in tick.pools if not pool.options.is_spot)
        spare = min(spare, on_demand - tick.spec.options.base_on_demand)
    capacity = {pool.id: pool.target * pool.rate for pool in tick.pools}
    room = tick.spec.options.pool_share * sum(capacity.values()) - capacity[cheap.id]
    spare = min(spare, int(room / max(cheap.rate, 1e-12)), cheap.most - cheap.target)
    if spare < 1 or dear.effective_price < DEARER * cheap.effective_price:
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


def _retire_replaced(tick: Tick, balance: Balance) -> None:
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


def _go_down(tick: Tick, balance: Balance) -> bool:
    """Retire half of what is too much, once that has lasted. Returns whether anything was to be done or confirmed."""
    options, before = tick.spec.options, tick.before
    roomy = balance.aim + 1.5 * balance.largest / balance.needed
    limit = roomy + balance.noise / 2 if before.is_settling else balance.band_high + balance.noise
    is_high = balance.ratio > limit and balance.demand.stream.wait_600_s < options.wait_low
    high_ticks = min(options.sustain_down_ticks, before.high_ticks + 1) if is_high else max(0, before.high_ticks - 1)
    tick.after = replace(tick.after, high_ticks=high_ticks)
    if before.is_settling and tick.at - before.acted_at > 6 * SETTLE_S:
        tick.after = replace(tick.after, is_settling=False)
    if not is_high or before.leaving or tick.victims:
        return False
    if high_ticks < options.sustain_down_ticks:
        tick.reasons.append(Reason.CONFIRMING_DOWN)
        return True
    tick.reasons.append(Reason.ABOVE_BAND)
    if len(_recent(before.downs, tick)) >= options.downs_per_window or _recent(before.ups, tick):
        tick.capped_by.append(Cap.ACTION_BUDGET)
        return True
    nodes = tick.signals.nodes
    most = int(options.down_share * np.count_nonzero(nodes.is_ready | nodes.is_pending))
    if _retire(tick, max(1, most), least_capacity=balance.aim * balance.needed, spare=balance.spare * (1.0 if before.is_settling else 0.5)):
        tick.after = replace(
            tick.after,
            downs=(*_recent(before.downs, tick), tick.at),
            acted_at=tick.at,
            ratios=(),
            high_ticks=0,
            is_settling=True,
        )
    else:
        tick.reasons.append(Reason.KEPT_TO_CARRY)
    return True


def _retire(tick: Tick, most: int, *, least_capacity: float, spare: float = float("inf")) -> int:
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


def _trim(tick: Tick, balance: Balance) -> None:
    """The trainer waits although there seems to be enough: the model of its demand is wrong by about that much."""
    options, before, trim = tick.spec.options, tick.before, tick.before.trim
    wait = balance.demand.stream.wait_300_s
    # Only what was waited after the last node came says anything about the model.
    is_quiet = tick.at - max(before.acted_at, before.trimmed_at, tick.after.pending_at) >= SETTLE_S
    if is_quiet and wait > options.wait_high and balance.ratio >= BAND_LOW:
        trim = min(options.trim_max, trim * (1 + options.trim_gain * wait))
        tick.after = replace(tick.after, trim=trim, trimmed_at=tick.at)
        tick.reasons.append(Reason.TRIMMED)
    elif wait < options.wait_low and trim > 1:
        tick.after = replace(tick.after, trim=max(1.0, trim * 0.998))


def _forget_failed_orders(tick: Tick) -> None:
    """What never came is cancelled; where another pool can take it over, this one gets no orders for a while."""
    signals = tick.signals
    overdue = overdue_of(signals, tick.pools)
    tick.victims += [signals.nodes.ids[row] for row in np.flatnonzero(overdue)]
    shut = {pool: until for pool, until in tick.before.shut_until.items() if until > signals.at - DEARER * 3600}
    for pool in tick.pools:
        patience_s = pool.delay_s if pool.options.is_spot else pool.patience_s
        if pool.overdue or (pool.target > pool.present and pool.missing_s > patience_s):
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


def _bound(tick: Tick, started: dict[PoolId, int]) -> None:
    """Bounds always hold; the caps in dollars do too, down to the bounds."""
    for pool in tick.pools:
        if pool.options.mode is Mode.UP_ONLY and pool.target < started[pool.id]:
            pool.target = started[pool.id]
            tick.capped_by.append(Cap.MODE)
        bounded = min(max(pool.target, pool.options.floor), pool.most)
        if bounded != pool.target:
            pool.target = bounded
            tick.reasons.append(Reason.BOUND)
    if tick.spec.is_killed or Reason.STALE_INPUT in tick.reasons:
        return
    cap, name = dollar_limit(tick.signals, tick.spec)
    while dollars_per_hour(tick.pools) > cap + 1e-9:
        falling = [pool for pool in tick.pools if pool.target > pool.options.floor and pool.may_fall and pool.price > 0]
        if not falling:
            break
        max(falling, key=lambda pool: (pool.effective_price, pool.id)).target -= 1
        if name not in tick.capped_by:
            tick.capped_by.append(name)


def _remembered(tick: Tick) -> SizerState:
    at, nodes = tick.at, tick.signals.nodes
    missing: dict[PoolId, float] = {}
    for pool in tick.pools:
        gap = pool.target - pool.ready - pool.pending
        had = tick.before.targets.get(pool.id, 0) - tick.before.presents.get(pool.id, 0)
        if gap > 0:
            is_old = pool.id in tick.before.missing_since and gap <= max(had, 0)
            missing[pool.id] = tick.before.missing_since[pool.id] if is_old else at
    suspect = {node for node, is_one in zip(nodes.ids, tick.capacity.is_suspect, strict=True) if is_one}
    return replace(
        tick.after,
        targets={pool.id: pool.target for pool in tick.pools},
        presents={pool.id: pool.ready + pool.pending for pool in tick.pools},
        missing_since=missing,
        suspects={node: tick.before.suspects.get(node, at) for node in sorted(suspect)},
        ups=tuple(_recent(tick.after.ups, tick)),
        downs=tuple(_recent(tick.after.downs, tick)),
    )


def _recent(actions: tuple[float, ...], tick: Tick) -> list[float]:
    return [action for action in actions if tick.at - action < tick.spec.options.action_window_s]


def _smallest_rate(pools: list[Pool]) -> float:
    return min((pool.rate for pool in pools if pool.rate > 0), default=0.0)
