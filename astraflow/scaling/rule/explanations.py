"""Recommendations as data and as one English sentence, from a decided tick."""

from astraflow.contract.fleet.recommendations import LimitInEffect, Mode, PoolRecommendation, Reason
from astraflow.contract.ids import NodeId
from astraflow.scaling.measurement.gates import staleness_needed
from astraflow.scaling.measurement.signals import GateSignals
from astraflow.scaling.rule.balance import BAND_LOW, Balance, Tick
from astraflow.scaling.rule.demand import usual_compute_s
from astraflow.scaling.rule.pools import Pool
from astraflow.scaling.rule.scale_up import COLD_START_SHARE

_REASON_TEXTS = {
    Reason.UNMEASURED: "no trainer step or no finished work has been measured yet",
    Reason.SWITCHED_OFF: "autoscaling is off",
    Reason.STALE_INPUT: "too many measurements are stale to change the size",
    Reason.STALLED: "the slots of the nodes are in use and no episode has ended, where {due} groups were due; look for "
    "environments, engines or judges that hang: more nodes would hang too",
    Reason.PAUSED: "the run is paused, and its demand is assumed to be unchanged",
    Reason.IDLE: "the run has been paused for long, so only warm nodes are kept",
    Reason.INSIDE_BAND: "capacity is {ratio} of what trainers need, inside the band {band}",
    Reason.CONFIRMING_UP: "capacity is {ratio} of what trainers need, below the band {band}, not for long enough yet",
    Reason.CONFIRMING_DOWN: "capacity is {ratio} of what trainers need, above the band {band}, not for long enough yet",
    Reason.BELOW_BAND: "capacity is {ratio} of what trainers need, below the band {band}",
    Reason.COLD_START: "capacity seems to be {ratio} of what trainers need, measured over {steps} of {enough_steps} "
    "steps: until then, orders aim at {cold_share} of that need",
    Reason.TRAINER_WAITS: "capacity is barely enough ({ratio}), and the trainer of {policy} waits {wait} of the time",
    Reason.FAR_BELOW: "capacity is only {ratio} of what trainers need",
    Reason.ABOVE_BAND: "capacity is {ratio} of what trainers need, above the band {band}",
    Reason.NEEDED_FOR_LOAD: "the remaining nodes could not carry the load if any node were retired",
    Reason.TRAINER_WAITED_RECENTLY: "the trainer of {policy} waited recently, although capacity is now {ratio} "
    "of its need, above the band {band}",
    Reason.REPLACING: "replacements of slow or expensive nodes are ordered",
    Reason.RETIRING: "replacements are ready, so the nodes that they replace are retired",
    Reason.TRIMMED: "the trainer of {policy} waits {wait} of the time although capacity is {ratio} of its need, "
    "so the assumed demand is raised",
    Reason.GATED: "the trainer of {waiting} waits {gated_wait} of the time while {idle} of {slots} slots are idle "
    "at the staleness gate{gate}",
    Reason.LAUNCHES_FAILING: "ordered nodes do not arrive, so orders go to other pools for a while",
    Reason.POOL_BOUNDS: "the pool's bounds changed the target",
    Reason.PARTIAL_NODES: "nodes of {partial_pools} serve some policies only, and the rule can size only nodes that "
    "serve all: set the sizes by hand, or let these nodes serve all policies",
    Reason.PLAIN_RULE: "the trainer of {policy} waits {wait} of the time",
}

LIMIT_TEXTS = {
    LimitInEffect.KILL_SWITCH: "the kill switch",
    LimitInEffect.MODE: "the pool's mode",
    LimitInEffect.MAX_NODES: "the maximum number of nodes",
    LimitInEffect.DOLLARS_PER_HOUR: "the hourly budget",
    LimitInEffect.DOLLARS_PER_DAY: "the daily budget",
    LimitInEffect.QUOTA: "the provider's quota",
    LimitInEffect.OVERRIDE: "a manual override",
    LimitInEffect.BREAKER: "recent launch failures",
    LimitInEffect.ACTION_BUDGET: "the limit of changes in ten minutes",
}
"""Limits as noun phrases, to follow "held back by"."""


def recommendation_of(pool: Pool, tick: Tick, before: int, digest: str) -> PoolRecommendation:
    """Returns the recommendation for a pool. before: its target at the previous tick."""
    low, high = _band_nodes(pool, tick.balance)
    members = {index for index, kind in enumerate(tick.signals.kinds) if kind.pool == pool.id}
    nodes = tick.signals.nodes
    own_nodes = {node for node, kind in zip(nodes.ids, nodes.kind, strict=True) if kind in members}
    limits = tuple(dict.fromkeys(tick.limited_by))
    reasons = _reasons(pool, tick, before)
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
        reasons=reasons,
        sentence=_sentence(pool, tick, before, reasons, limits),
        limited_by=limits,
        victims=tuple(NodeId(node) for node in tick.victims if node in own_nodes),
        inputs=_inputs(pool, tick),
        input_hash=digest,
    )


def _reasons(pool: Pool, tick: Tick, before: int) -> tuple[Reason, ...]:
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


def _sentence(
    pool: Pool, tick: Tick, before: int, reasons: tuple[Reason, ...], limits: tuple[LimitInEffect, ...]
) -> str:
    nodes = "node" if pool.target == 1 else "nodes"
    change = f"{before} to {pool.target} {nodes}" if pool.target != before else f"stay at {pool.target} {nodes}"
    reason = _REASON_TEXTS[reasons[0]].format(**_texts(tick))
    limited = f"; held back by {' and '.join(LIMIT_TEXTS[limit] for limit in limits)}" if limits else ""
    return f"{pool.id}: {change}, because {reason}{limited}."


def _texts(tick: Tick) -> dict[str, str]:
    balance = tick.balance
    streams = tick.signals.streams
    stream = (
        balance.demand.stream
        if balance
        else max(streams, key=lambda candidate: candidate.wait_share_of_steps, default=None)
    )
    wait = 0.0 if stream is None else stream.wait_share_300_s if balance else stream.wait_share_of_steps
    return {
        "partial_pools": ", ".join(tick.signals.partial_pools),
        "ratio": f"{balance.ratio:.2f}" if balance else "",
        "band": f"{BAND_LOW:.2f} to {balance.band_high:.2f}" if balance else "",
        "policy": str(stream.policy) if stream else "no policy",
        "wait": f"{wait:.0%}",
        "steps": str(len(stream.compute_s) if stream else 0),
        "enough_steps": str(tick.spec.options.cold_start_steps),
        "cold_share": f"{COLD_START_SHARE:.0%}",
        "due": f"{tick.capacity.overdue_groups:.0f}",
        **_gate_texts(tick.signals.gate, tick),
    }


def _gate_texts(gate: GateSignals | None, tick: Tick) -> dict[str, str]:
    if gate is None:
        return {}
    enough = f"max_staleness {_staleness_needed(gate, tick)} instead of {gate.max_staleness} would"
    own_gate_text = f": more nodes would hardly help, {enough} (a group takes {gate.group_s:.3g} s)"
    other_gate_text = f" of {gate.policy}, whose trainer limits a flow that both share: more nodes would hardly help"
    return {
        "waiting": str(gate.waiting_policy),
        "gated_wait": f"{gate.wait_share:.0%}",
        "idle": f"{gate.idle_slots:.0f}",
        "slots": f"{gate.slots:.0f}",
        "gate": own_gate_text if gate.is_own_gate else other_gate_text,
    }


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
    inputs = {"price_per_hour": pool.price, **_gate_inputs(tick)}
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
