"""Advice as data and as one English sentence, from a tick that is decided."""

from astraflow.contract.advice import Cap, Mode, PoolAdvice, Reason
from astraflow.contract.ids import NodeId
from astraflow.scaling.balance import BAND_LOW, Balance
from astraflow.scaling.demand import usual_compute_s
from astraflow.scaling.gates import staleness_needed
from astraflow.scaling.pools import Pool
from astraflow.scaling.signals import GateSignals
from astraflow.scaling.tick import Tick

_SAID = {
    Reason.UNMEASURED: "no step or no finished work is measured yet",
    Reason.SWITCHED_OFF: "sizing is switched off",
    Reason.STALE_INPUT: "too much of what is measured is old, and that is no reason to shrink",
    Reason.PAUSED: "the run is paused, and its demand is taken to be as before",
    Reason.IDLE: "the pause lasts, so only warm nodes are kept",
    Reason.INSIDE_BAND: "capacity is {ratio} of what trainers need, inside the band {band}",
    Reason.CONFIRMING_UP: "capacity is {ratio} of what trainers need, below the band {band}, not yet for long",
    Reason.CONFIRMING_DOWN: "capacity is {ratio} of what trainers need, above the band {band}, not yet for long",
    Reason.BELOW_BAND: "capacity is {ratio} of what trainers need, below the band {band}",
    Reason.TRAINER_WAITS: "capacity is barely enough ({ratio}), and the trainer of {policy} waits {wait} of the time",
    Reason.FAR_BELOW: "capacity is only {ratio} of what trainers need",
    Reason.ABOVE_BAND: "capacity is {ratio} of what trainers need, above the band {band}",
    Reason.KEPT_TO_CARRY: "the rest could not carry the load without any one node",
    Reason.WAITED_LATELY: "the trainer of {policy} waited lately, although capacity is {ratio} of its need now, "
    "above the band {band}",
    Reason.REPLACING: "replacements of slow or dear nodes are ordered",
    Reason.RETIRING: "replacements are up, and what they replace may go",
    Reason.TRIMMED: "the trainer of {policy} waits {wait} of the time although capacity is {ratio} of its need, "
    "so more is taken to be needed",
    Reason.GATED: "the trainer of {waiting} waits {gated_wait} of the time while {idle} of {slots} slots stand empty "
    "at the staleness gate{gate}",
    Reason.LAUNCHES_FAIL: "orders do not arrive here and go elsewhere for a while",
    Reason.BOUND: "its bounds moved the target",
    Reason.PLAIN_RULE: "the trainer of {policy} waits {wait} of the time",
}

CAPS = {
    Cap.KILL_SWITCH: "the kill switch",
    Cap.MODE: "its mode",
    Cap.MAX_NODES: "the largest number of nodes",
    Cap.DOLLARS_PER_HOUR: "the dollars an hour",
    Cap.DOLLARS_PER_DAY: "the dollars a day",
    Cap.QUOTA: "the provider's quota",
    Cap.HOLD: "somebody who holds the pool",
    Cap.BREAKER: "launches that failed lately",
    Cap.ACTION_BUDGET: "the number of changes within ten minutes",
}
"""What holds a target back, after "held back by"."""


def advice_of(pool: Pool, tick: Tick, before: int, digest: str) -> PoolAdvice:
    """What to say about one pool. before: its target of the tick before."""
    low, high = _band_nodes(pool, tick.balance)
    members = {index for index, kind in enumerate(tick.signals.kinds) if kind.pool == pool.id}
    nodes = tick.signals.nodes
    own = {node for node, kind in zip(nodes.ids, nodes.kind, strict=True) if kind in members}
    caps = tuple(dict.fromkeys(tick.capped_by))
    reasons = _reasons(pool, tick, before)
    return PoolAdvice(
        pool=pool.id,
        at=tick.at,
        mode=pool.options.mode,
        policy=tick.policy,
        present=pool.ready + pool.pending,
        pending=pool.pending,
        target=pool.target,
        band_low=low,
        band_high=high,
        reasons=reasons,
        sentence=_sentence(pool, tick, before, reasons, caps),
        capped_by=caps,
        victims=tuple(NodeId(node) for node in tick.victims if node in own),
        inputs=_inputs(pool, tick),
        input_hash=digest,
    )


def _reasons(pool: Pool, tick: Tick, before: int) -> tuple[Reason, ...]:
    own = [Reason.SWITCHED_OFF] if pool.options.mode is Mode.OFF else []
    return tuple(dict.fromkeys([*own, *tick.reasons])) or (Reason.INSIDE_BAND,)


def _band_nodes(pool: Pool, balance: Balance | None) -> tuple[float, float]:
    """Sizes of this pool at which the whole would be at the edges, the other pools as they are."""
    if balance is None or pool.rate <= 0:
        return float(pool.target), float(pool.target)
    held = pool.present + pool.announced
    low, high = (
        max(0.0, held + (edge * balance.needed - balance.ordered) / pool.rate) for edge in (BAND_LOW, balance.band_high)
    )
    return low, high


def _sentence(pool: Pool, tick: Tick, before: int, reasons: tuple[Reason, ...], caps: tuple[Cap, ...]) -> str:
    nodes = "node" if pool.target == 1 else "nodes"
    moved = f"{before} to {pool.target} {nodes}" if pool.target != before else f"stay at {pool.target} {nodes}"
    said = _SAID[reasons[0]].format(**_figures(tick))
    capped = f"; held back by {' and '.join(CAPS[cap] for cap in caps)}" if caps else ""
    return f"{pool.id}: {moved}, because {said}{capped}."


def _figures(tick: Tick) -> dict[str, str]:
    balance = tick.balance
    streams = tick.signals.streams
    stream = balance.demand.stream if balance else max(streams, key=lambda one: one.wait_of_versions, default=None)
    wait = 0.0 if stream is None else stream.wait_300_s if balance else stream.wait_of_versions
    return {
        "ratio": f"{balance.ratio:.2f}" if balance else "",
        "band": f"{BAND_LOW:.2f} to {balance.band_high:.2f}" if balance else "",
        "policy": str(stream.policy) if stream else "no policy",
        "wait": f"{wait:.0%}",
        **_gate_figures(tick.signals.gate, tick),
    }


def _gate_figures(gate: GateSignals | None, tick: Tick) -> dict[str, str]:
    if gate is None:
        return {}
    enough = f"max_staleness {_staleness_needed(gate, tick)} instead of {gate.max_staleness} would"
    own = f": more nodes hardly help, {enough} (a group is out for {gate.group_s:.3g} s)"
    other = f" of {gate.policy}, whose trainer sets the pace of a flow they share: more nodes hardly help"
    return {
        "waiting": str(gate.waiting),
        "gated_wait": f"{gate.wait:.0%}",
        "idle": f"{gate.idle_slots:.0f}",
        "slots": f"{gate.slots:.0f}",
        "gate": own if gate.is_own else other,
    }


def _staleness_needed(gate: GateSignals, tick: Tick) -> int:
    """More than what was found to be too little."""
    least = gate.max_staleness + 1
    stream = next((one for one in tick.signals.streams if one.policy == gate.policy and one.compute_s), None)
    if stream is None:
        return least
    step_s, _ = usual_compute_s(stream.compute_s)
    needed = staleness_needed(group_s=gate.group_s, step_s=step_s, produced_per_usable=stream.produced_per_usable)
    return max(least, needed)


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
        "band_aim": balance.aim,
        "band_high": balance.band_high,
        "trim": tick.before.trim,
        "compute_s": balance.demand.compute_s,
        "groups_per_step": stream.groups_per_step,
        "produced_per_usable": stream.produced_per_usable,
        "wait_300_s": stream.wait_300_s,
        "wait_600_s": stream.wait_600_s,
    }


def _gate_inputs(tick: Tick) -> dict[str, float]:
    gate = tick.signals.gate
    if gate is None:
        return {}
    inputs = {"gate_closed": gate.closed, "idle_slots": gate.idle_slots, "slots": gate.slots, "group_s": gate.group_s}
    if tick.is_gated and gate.is_own:
        inputs["staleness_needed"] = float(_staleness_needed(gate, tick))
    return inputs
