"""Recommends a size for each pool: keeps capacity over demand in a dead band, confirmed by the trainer's wait.

A pure function of signals, spec and state, without clock, network or randomness. Demand follows from the compute time
of steps, capacity from the busy time of nodes. Neither depends on the number of nodes, so the pool's size does not feed
back into them. Ordered nodes count as capacity at once, so that no node is ordered twice while nodes start.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, isfinite

import numpy as np

from astraflow.contract.fleet.recommendations import LimitInEffect, Reason
from astraflow.contract.ids import PoolId
from astraflow.scaling.measurement.signals import Signals, StreamSignals
from astraflow.scaling.options import Spec
from astraflow.scaling.rule.balance import BAND_LOW, Balance, Tick, balance_of
from astraflow.scaling.rule.capacity import capacity_of
from astraflow.scaling.rule.demand import demand_of
from astraflow.scaling.rule.explanations import recommendation_of
from astraflow.scaling.rule.limits import apply_limits, pause_failing_pools
from astraflow.scaling.rule.placement import order_nodes
from astraflow.scaling.rule.pools import pools_of
from astraflow.scaling.rule.replacement import replace_nodes, retire_replaced
from astraflow.scaling.rule.scale_down import retire, try_scale_down
from astraflow.scaling.rule.scale_up import try_scale_up
from astraflow.scaling.rule.state import SizerResult, SizerState

SILENT_TICKS = 3
"""Ticks without a heartbeat after which a node is silent."""

SILENT_SHARE = 0.2
"""Share of silent nodes above which all measurements count as stale."""

STALE_STEPS, STALE_S = 5.0, 600.0
"""Time without a step, in usual steps and in seconds, after which measurements count as stale."""

SETTLE_S = 300.0
"""Time after an action in which the trim, the factor on the measured demand, does not change."""

TRIM_HALVED_S = 10_400.0
"""Half-life of the trim while no trainer waits. Seconds."""


def decide(signals: Signals, spec: Spec, state: SizerState) -> SizerResult:
    """Decides one tick: returns a target for each pool with its reasons, and the state for the next tick."""
    capacity = capacity_of(signals, spec.options, usual=state.node_groups_per_s)
    pools = pools_of(signals, spec, state, capacity)
    tick = Tick(signals=signals, spec=spec, before=state, capacity=capacity, pools=pools, after=state)
    initial_targets = {pool.id: pool.target for pool in pools}
    if not state.targets:
        tick.after = replace(state, acted_at=signals.at)  # the initial nodes count as an action
    pause_failing_pools(tick)
    _update_targets(tick)
    apply_limits(tick, initial_targets)
    tick.after = _next_state(tick)
    digest = signals.digest()
    recommendations = tuple(recommendation_of(pool, tick, initial_targets[pool.id], digest) for pool in pools)
    changed_pools = frozenset(pool.id for pool in pools if pool.target != initial_targets[pool.id])
    return SizerResult(recommendations=recommendations, state=tick.after, changed_pools=changed_pools)


def _update_targets(tick: Tick) -> None:
    signals, options = tick.signals, tick.spec.options
    # The work of all nodes cannot be compared with the demand of all policies where some nodes serve only some.
    demand = None if signals.partial_pools else demand_of(signals.streams)
    if demand and tick.capacity.is_measured:
        tick.balance = balance_of(
            signals, tick.spec, tick.before, demand=demand, capacity=tick.capacity, pools=tick.pools
        )
    if _may_not_act(tick, usual_s=demand.compute_s if demand else 0.0):
        return
    if options.rule == "baseline" or tick.balance is None:
        _apply_baseline(tick, is_chosen=options.rule == "baseline")
        return
    _keep_measurement(tick, tick.balance)
    if tick.is_gated:
        tick.reasons.append(Reason.GATED)
    retire_replaced(tick, tick.balance)
    if not (
        try_scale_up(tick, tick.balance) or replace_nodes(tick, tick.balance) or try_scale_down(tick, tick.balance)
    ):
        trim_demand(tick, tick.balance)
    if not tick.reasons:
        tick.reasons.append(Reason.INSIDE_BAND)


def _may_not_act(tick: Tick, *, usual_s: float) -> bool:
    """Returns whether the targets stay as they are, or are those of a paused run. Measuring goes on meanwhile."""
    if tick.spec.is_kill_switch_on:
        tick.reasons.append(Reason.SWITCHED_OFF)
        tick.limited_by.append(LimitInEffect.KILL_SWITCH)
    elif tick.signals.paused_s is not None:
        _pause(tick)
    else:
        held = _hold_reason(tick, usual_s=usual_s)
        if held is not None:
            tick.reasons.append(held)
        return held is not None
    if tick.balance is not None:
        _keep_measurement(tick, tick.balance)
    return True


def _hold_reason(tick: Tick, *, usual_s: float) -> Reason | None:
    """Returns why the measurements cannot be compared or trusted; None where they can."""
    if tick.signals.partial_pools:
        return Reason.PARTIAL_NODES
    if _is_stale(tick, usual_s=usual_s):
        return Reason.STALE_INPUT
    return Reason.STALLED if tick.capacity.is_stalled else None


def _keep_measurement(tick: Tick, balance: Balance) -> None:
    tick.after = replace(
        tick.after,
        ratios=balance.ratios,
        compute_s=balance.compute_s,
        uses_short_window=tick.capacity.uses_short_window,
        node_groups_per_s=tick.capacity.usual_node_rate,
    )
    if balance.ordered - balance.ready > balance.best_node_rate / 2:
        tick.after = replace(tick.after, pending_at=tick.at)


def _pause(tick: Tick) -> None:
    """Freezes the demand; after a long pause keeps only the warm nodes."""
    if (tick.signals.paused_s or 0.0) < tick.spec.options.idle_after_s:
        tick.reasons.append(Reason.PAUSED)
        return
    tick.reasons.append(Reason.IDLE)
    for pool in tick.pools:
        if pool.may_shrink:
            pool.target = min(pool.target, pool.options.floor)


def _is_stale(tick: Tick, *, usual_s: float) -> bool:
    nodes, tick_s = tick.signals.nodes, tick.spec.tick_s
    silent_s = nodes.silent_s[nodes.is_ready]
    silent_nodes = np.count_nonzero(~(silent_s <= SILENT_TICKS * tick_s))
    if silent_nodes > SILENT_SHARE * silent_s.size:
        return True
    limit_s = max(STALE_STEPS * usual_s, STALE_S)
    # A trainer that waits for nodes makes no steps either, and nodes are ordered for it.
    return any(stream.step_age_s > limit_s and stream.wait_share_300_s < 0.5 for stream in tick.signals.streams)


def _apply_baseline(tick: Tick, *, is_chosen: bool) -> None:
    steps = sum(stream.steps for stream in tick.signals.streams)
    if not steps or not tick.signals.streams:
        tick.reasons.append(Reason.UNMEASURED)
        return
    tick.rule = "baseline"
    tick.reasons.append(Reason.PLAIN_RULE if is_chosen else Reason.UNMEASURED)
    if steps - tick.before.baseline_steps < WINDOW_STEPS or not (is_chosen or _could_be_measured(tick)):
        return
    current_nodes = sum(pool.target for pool in tick.pools)
    target_nodes = baseline_total(current_nodes, tick.signals.streams)
    if target_nodes == current_nodes:
        return
    if Reason.PLAIN_RULE not in tick.reasons:
        tick.reasons.insert(0, Reason.PLAIN_RULE)
    tick.after = replace(tick.after, baseline_steps=steps)
    if target_nodes > current_nodes:
        order = order_nodes(target_nodes - current_nodes, tick.pools, tick.signals, tick.spec)
        tick.limited_by += order.limited_by
    else:
        retire(tick, current_nodes - target_nodes, min_capacity=0.0)


def _could_be_measured(tick: Tick) -> bool:
    """Returns whether a node has been ready for long enough to have finished its first tasks."""
    nodes = tick.signals.nodes
    return bool((nodes.age_s[nodes.is_ready] >= tick.spec.options.window_short_s).any())


def trim_demand(tick: Tick, balance: Balance) -> None:
    """Raises the assumed demand when a trainer waits although capacity seems sufficient; lets it decay later."""
    options, before, trim = tick.spec.options, tick.before, tick.before.trim
    # A wait at the staleness gate, or before the last pending node is ready, does not measure demand.
    wait = 0.0 if tick.is_gated else balance.demand.stream.wait_share_300_s
    is_quiet = tick.at - max(tick.after.acted_at, before.trimmed_at, tick.after.pending_at) >= SETTLE_S
    if is_quiet and wait > options.wait_high and balance.ratio >= BAND_LOW:
        trim = min(options.trim_max, trim * (1 + options.trim_gain * wait))
        tick.after = replace(tick.after, trim=trim, trimmed_at=tick.at)
        tick.reasons.append(Reason.TRIMMED)
    elif wait < options.wait_low and trim > 1:
        tick.after = replace(tick.after, trim=max(1.0, trim * 0.5 ** (tick.spec.tick_s / TRIM_HALVED_S)))


def _next_state(tick: Tick) -> SizerState:
    at, nodes = tick.at, tick.signals.nodes
    missing: dict[PoolId, float] = {}
    for pool in tick.pools:
        gap = pool.target - pool.ready - pool.pending
        earlier_gap = tick.before.targets.get(pool.id, 0) - tick.before.present_nodes.get(pool.id, 0)
        if gap > 0:
            is_old = pool.id in tick.before.missing_since and gap <= max(earlier_gap, 0)
            missing[pool.id] = tick.before.missing_since[pool.id] if is_old else at
    suspects = {node for node, is_suspect in zip(nodes.ids, tick.capacity.is_suspect, strict=True) if is_suspect}
    return replace(
        tick.after,
        targets={pool.id: pool.target for pool in tick.pools},
        present_nodes={pool.id: pool.ready + pool.pending for pool in tick.pools},
        missing_since=missing,
        suspects={node: tick.before.suspects.get(node, at) for node in sorted(suspects)},
        scale_ups=tuple(tick.recent(tick.after.scale_ups)),
        scale_downs=tuple(tick.recent(tick.after.scale_downs)),
    )


WINDOW_STEPS = 10
"""Steps over which the share is measured, and between two actions."""

_HIGH, _LOW, _MOST, _MARGIN = 0.10, 0.05, 0.95, 1.10
_ROUNDING = 1e-9


def baseline_total(nodes: int, streams: Sequence[StreamSignals]) -> int:
    """Returns the target of all pools together; the policy with the largest target decides.

    >>> from astraflow.contract.ids import PolicyId
    >>> def stream(wait, used):
    ...     return StreamSignals(policy=PolicyId("a"), compute_s=(), groups_per_step=1, produced_per_usable=1,
    ...         wait_share_300_s=0, wait_share_600_s=0, step_age_s=0, wait_share_of_steps=wait,
    consumed_per_entered=used) >>> baseline_total(6, [stream(0.27, 1.0)]), baseline_total(11, [stream(0.02, 0.8)]) (9,
    10) >>> baseline_total(9, [stream(0.07, 0.5)]) 9
    """
    return max([_target_nodes(nodes, stream) for stream in streams], default=nodes)


def _target_nodes(nodes: int, stream: StreamSignals) -> int:
    wait = min(stream.wait_share_of_steps, _MOST)
    if wait > _HIGH:
        return ceil(max(1, nodes) / (1 - wait) - _ROUNDING)
    consumed = stream.consumed_per_entered
    if wait < _LOW and isfinite(consumed):
        return min(nodes, ceil(nodes * max(0.0, consumed) * _MARGIN - _ROUNDING))
    return nodes
