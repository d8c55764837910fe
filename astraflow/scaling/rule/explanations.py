"""Recommendations of a decided tick."""

from astraflow.contract.fleet.recommendations import Mode, PoolRecommendation, Reason
from astraflow.contract.ids import NodeId
from astraflow.contract.values import Value
from astraflow.scaling.measurement.gates import staleness_needed
from astraflow.scaling.measurement.signals import GateSignals
from astraflow.scaling.rule.balance import BAND_LOW, Balance, Tick
from astraflow.scaling.rule.demand import usual_compute_s
from astraflow.scaling.rule.pools import Pool
from astraflow.scaling.rule.scale_up import COLD_START_SHARE


def recommendation_of(pool: Pool, tick: Tick, before: int, digest: str) -> PoolRecommendation:
    """Returns the recommendation for a pool. before: its target at the previous tick."""
    low, high = _band_nodes(pool, _balance_of_rule(tick))
    members = {index for index, kind in enumerate(tick.signals.kinds) if kind.pool == pool.id}
    nodes = tick.signals.nodes
    own_nodes = {node for node, kind in zip(nodes.ids, nodes.kind, strict=True) if kind in members}
    limits = tuple(dict.fromkeys(tick.limited_by))
    return PoolRecommendation(
        pool=pool.id,
        at=tick.at,
        mode=pool.options.mode,
        policy=tick.rule,
        present=pool.ready + pool.pending,
        pending=pool.pending,
        target=pool.target,
        band_low=low,
        band_high=high,
        reasons=_reasons(pool, tick),
        before=before,
        limited_by=limits,
        victims=tuple(NodeId(node) for node in tick.victims if node in own_nodes),
        inputs=_inputs(pool, tick),
        figures=_figures(tick),
        input_hash=digest,
    )


def _reasons(pool: Pool, tick: Tick) -> tuple[Reason, ...]:
    mode_reasons = [Reason.SWITCHED_OFF] if pool.options.mode is Mode.OFF else []
    return tuple(dict.fromkeys([*mode_reasons, *tick.reasons])) or (Reason.INSIDE_BAND,)


def _band_nodes(pool: Pool, balance: Balance | None) -> tuple[float, float]:
    """Returns the sizes of this pool at the edges of the band, with the other pools unchanged."""
    if balance is None or pool.rate <= 0:
        return float(pool.target), float(pool.target)
    current_nodes = pool.present + pool.expected_nodes
    low, high = (
        max(0.0, current_nodes + (edge * balance.needed - balance.ordered) / pool.rate)
        for edge in (BAND_LOW, balance.band_high)
    )
    return low, high


def _balance_of_rule(tick: Tick) -> Balance | None:
    """Returns the balance if the rule that decided uses it."""
    return tick.balance if tick.rule == "sizer" else None


def _figures(tick: Tick) -> dict[str, Value]:
    """Returns the figures of the reasons' texts that are no inputs."""
    balance = _balance_of_rule(tick)
    streams = tick.signals.streams
    stream = (
        balance.demand.stream
        if balance
        else max(streams, key=lambda candidate: candidate.wait_share_of_steps, default=None)
    )
    wait_share = 0.0 if stream is None else stream.wait_share_300_s if balance else stream.wait_share_of_steps
    return {
        "partial_pools": ", ".join(tick.signals.partial_pools),
        "policy": str(stream.policy) if stream else "no policy",
        "wait_share": wait_share,
        "steps": len(stream.compute_s) if stream else 0,
        "enough_steps": tick.spec.options.cold_start_steps,
        "cold_start_share": COLD_START_SHARE,
        "due_groups": tick.capacity.overdue_groups,
        **_gate_figures(tick.signals.gate, tick),
    }


def _gate_figures(gate: GateSignals | None, tick: Tick) -> dict[str, Value]:
    if gate is None:
        return {}
    own: dict[str, Value] = (
        {"max_staleness": gate.max_staleness, "staleness_needed": _staleness_needed(gate, tick)}
        if gate.is_own_gate
        else {"gate_policy": str(gate.policy)}
    )
    return {"waiting_policy": str(gate.waiting_policy), "gated_wait_share": gate.wait_share, **own}


def _staleness_needed(gate: GateSignals, tick: Tick) -> int:
    """Returns the staleness bound that would keep the trainer busy, above the current bound."""
    smallest = gate.max_staleness + 1
    stream = next(
        (candidate for candidate in tick.signals.streams if candidate.policy == gate.policy and candidate.compute_s),
        None,
    )
    if stream is None:
        return smallest
    step_s, _ = usual_compute_s(stream.compute_s)
    needed = staleness_needed(group_s=gate.group_s, step_s=step_s, produced_per_usable=stream.produced_per_usable)
    return max(smallest, needed)


def _inputs(pool: Pool, tick: Tick) -> dict[str, float]:
    inputs = {"price_per_hour": pool.price, "wait_high": tick.spec.options.wait_high, **_gate_inputs(tick)}
    if pool.rate > 0:
        inputs["node_groups_per_s"] = pool.rate
    balance = tick.balance
    if balance is None:
        return inputs
    stream = balance.demand.stream
    return inputs | {
        "demand_groups_per_s": balance.needed,
        "capacity_groups_per_s": balance.ready,
        "capacity_ordered_groups_per_s": balance.ordered,
        "ratio": balance.ratio,
        "noise": balance.noise,
        "band_low": BAND_LOW,
        "band_aim": balance.target_ratio,
        "band_high": balance.band_high,
        "trim": tick.before.trim,
        "compute_s": balance.demand.compute_s,
        "groups_per_step": stream.groups_per_step,
        "produced_per_usable": stream.produced_per_usable,
        "wait_share_300_s": stream.wait_share_300_s,
        "wait_share_600_s": stream.wait_share_600_s,
    }


def _gate_inputs(tick: Tick) -> dict[str, float]:
    gate = tick.signals.gate
    if gate is None:
        return {}
    inputs = {
        "gate_closed": gate.closed_share,
        "idle_slots": gate.idle_slots,
        "slots": gate.slots,
        "group_s": gate.group_s,
    }
    if tick.is_gated and gate.is_own_gate:
        inputs["staleness_needed"] = float(_staleness_needed(gate, tick))
    return inputs
