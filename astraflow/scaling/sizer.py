"""How large each pool should be: capacity over demand in a dead band, confirmed by the trainer's wait.

A pure function of signals, spec and state: no clock, no network, no chance. Demand comes from how long steps compute,
capacity from how long nodes are busy, and neither from how many nodes there are, so that the loop is not closed through
them. Orders count as capacity at once, so that nothing is ordered twice while nodes start.
"""

from dataclasses import replace

import numpy as np

from astraflow.contract.advice import Cap, Reason
from astraflow.contract.ids import PoolId
from astraflow.scaling.balance import BAND_LOW, Balance, balance_of
from astraflow.scaling.bounding import bound, forget_failed_orders
from astraflow.scaling.capacity import capacity_of
from astraflow.scaling.demand import demand_of
from astraflow.scaling.explain import advice_of
from astraflow.scaling.growing import go_up
from astraflow.scaling.options import Spec
from astraflow.scaling.placement import order_nodes
from astraflow.scaling.plain import VERSIONS, plain_total
from astraflow.scaling.pools import pools_of
from astraflow.scaling.replacing import replace_nodes, retire_replaced
from astraflow.scaling.shrinking import go_down, retire
from astraflow.scaling.signals import Signals
from astraflow.scaling.state import SizerState, Verdict
from astraflow.scaling.tick import Tick

SILENT_TICKS = 3
SILENT_SHARE = 0.2
"""More nodes than this share without a beat for so many ticks: the rest of what is measured may be as old."""

STALE_STEPS, STALE_S = 5.0, 600.0
"""No step for so many usual steps, and for so long."""

SETTLE_S = 300.0
"""After an action, the trim waits for its effect."""

TRIM_HALVED_S = 10_400.0
"""Without waiting, half of a trim is left after so long."""


def decide(signals: Signals, spec: Spec, state: SizerState) -> Verdict:
    """One tick: a target for each pool, with its reasons, and the state for the next tick."""
    capacity = capacity_of(signals, spec.options, usual=state.node_groups_per_s)
    pools = pools_of(signals, spec, state, capacity)
    tick = Tick(signals=signals, spec=spec, before=state, capacity=capacity, pools=pools, after=state)
    started = {pool.id: pool.target for pool in pools}
    if not state.targets:
        tick.after = replace(state, acted_at=signals.at)  # what was there first counts as an action of somebody
    forget_failed_orders(tick)
    _move(tick)
    bound(tick, started)
    tick.after = _remembered(tick)
    digest = signals.digest()
    advice = tuple(advice_of(pool, tick, started[pool.id], digest) for pool in pools)
    moved = frozenset(pool.id for pool in pools if pool.target != started[pool.id])
    return Verdict(advice=advice, state=tick.after, moved=moved)


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
    tick.balance = balance_of(signals, tick.spec, tick.before, demand=demand, capacity=tick.capacity, pools=tick.pools)
    tick.after = replace(
        tick.after,
        ratios=tick.balance.ratios,
        compute_s=tick.balance.compute_s,
        is_short=tick.capacity.is_short,
        node_groups_per_s=tick.capacity.remembered,
    )
    if tick.balance.ordered - tick.balance.ready > tick.balance.largest / 2:
        tick.after = replace(tick.after, pending_at=tick.at)
    if tick.is_gated:
        tick.reasons.append(Reason.GATED)
    retire_replaced(tick, tick.balance)
    if not (go_up(tick, tick.balance) or replace_nodes(tick, tick.balance) or go_down(tick, tick.balance)):
        trim_demand(tick, tick.balance)
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
    nodes, tick_s = tick.signals.nodes, tick.spec.tick_s
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
        retire(tick, have - wanted, least_capacity=0.0)


def trim_demand(tick: Tick, balance: Balance) -> None:
    """The trainer waits although there seems to be enough: the model of its demand is wrong by about that much."""
    options, before, trim = tick.spec.options, tick.before, tick.before.trim
    # A wait at the gate says nothing of the demand; nor does one before the last node came.
    wait = 0.0 if tick.is_gated else balance.demand.stream.wait_300_s
    is_quiet = tick.at - max(tick.after.acted_at, before.trimmed_at, tick.after.pending_at) >= SETTLE_S
    if is_quiet and wait > options.wait_high and balance.ratio >= BAND_LOW:
        trim = min(options.trim_max, trim * (1 + options.trim_gain * wait))
        tick.after = replace(tick.after, trim=trim, trimmed_at=tick.at)
        tick.reasons.append(Reason.TRIMMED)
    elif wait < options.wait_low and trim > 1:
        tick.after = replace(tick.after, trim=max(1.0, trim * 0.5 ** (tick.spec.tick_s / TRIM_HALVED_S)))


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
        ups=tuple(tick.recent(tick.after.ups)),
        downs=tuple(tick.recent(tick.after.downs)),
    )
