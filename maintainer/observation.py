"""What is the matter: a pure function of what is seen now and what is remembered. It costs no tokens.

A signal stands as long as its cause does. One that is new is an event, and wakes the maintainer.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

from astraflow.contract.advice import Cap, PoolAdvice, Reason
from astraflow.contract.fleet import Instance, InstanceState, Pool
from astraflow.contract.ids import PoolId
from astraflow.contract.reports import NodeReport, NodeState
from maintainer.config import WatchConfig
from maintainer.sight import Sight

LEAST_NODES = 3
"""A median of fewer says nothing."""
LEAST_OF_POOL = 2
"""Nor that of a single node of a pool: it may have had luck."""

_UNKNOWING = frozenset({Reason.UNMEASURED, Reason.SWITCHED_OFF, Reason.STALE_INPUT, Reason.PAUSED, Reason.IDLE})
"""Reasons under which the band is of no account."""
_QUIET_CAPS = frozenset({Cap.MODE, Cap.HOLD})
"""Caps that are how somebody set the pool."""


class SignalKind(Enum):
    """What can be the matter."""

    BAND_BREACH = "band_breach"
    """A pool is outside the rule's band, and stays there. value: nodes from the nearer edge, negative for too few."""
    CAP_HIT = "cap_hit"
    """Bounds, money or quota keep the rule from where it wants to be. value: how many do."""
    LAUNCH_FAILURES = "launch_failures"
    """Launches fail. value: how many did lately."""
    PREEMPTION_WAVE = "preemption_wave"
    """Nodes go that nobody sent away: taken with their provider's notice, or lost. value: how many did lately."""
    STRAGGLER = "straggler"
    """A node is much slower than its like where they do best. value: its share of their speed."""
    BLIND = "blind"
    """Dataflow says nothing new. value: seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One thing that is the matter."""

    kind: SignalKind
    pool: str = ""
    subject: str = ""
    """Which node, or which caps; empty where the pool says it all."""
    value: float = 0.0

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal as long as it is the same matter."""
        return self.kind.value, self.pool, self.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What has to be remembered from one look to the next."""

    at: float = 0.0
    ticks: Mapping[str, float] = field(default_factory=dict)
    """When the rule looked at each pool last."""
    breaches: Mapping[str, int] = field(default_factory=dict)
    """Its ticks in a row that found the pool outside the band."""
    speeds: Mapping[str, float] = field(default_factory=dict)
    """Of each node, smoothed."""
    slow_since: Mapping[str, float] = field(default_factory=dict)


def observe(memory: Memory, sight: Sight, watch: WatchConfig) -> tuple[Memory, tuple[Signal, ...]]:
    """What to remember, and all that is the matter now, the most urgent kinds first."""
    is_blind = sight.report is None or (sight.report_age_s or 0.0) > watch.blind_s
    remembered = memory if is_blind else _remembered(memory, sight, watch)
    signals: list[Signal] = []
    for pool in sight.fleet.pools:
        signals += _of_pool(pool, sight, watch)
        if not is_blind:
            signals += _of_report(pool, remembered, sight, watch)
    if is_blind:
        signals.append(Signal(kind=SignalKind.BLIND, value=round(sight.report_age_s or 0.0, 1)))
    order = [SignalKind.LAUNCH_FAILURES, SignalKind.PREEMPTION_WAVE, SignalKind.BAND_BREACH, *SignalKind]
    return remembered, tuple(sorted(signals, key=lambda signal: (order.index(signal.kind), signal.key)))


def _remembered(memory: Memory, sight: Sight, watch: WatchConfig) -> Memory:
    ticks, breaches = dict(memory.ticks), dict(memory.breaches)
    for advice in sight.report.advice if sight.report is not None else ():
        if advice.at > ticks.get(advice.pool, -math.inf):
            ticks[advice.pool] = advice.at
            breaches[advice.pool] = breaches.get(advice.pool, 0) + 1 if _distance(advice) else 0
    speeds = _smoothed(memory, sight, watch)
    slow = _slow(sight, speeds, watch)
    since = {name: memory.slow_since.get(name, sight.at) for name in slow}
    return Memory(at=sight.at, ticks=ticks, breaches=breaches, speeds=speeds, slow_since=since)


def _distance(advice: PoolAdvice) -> float:
    """Nodes from the nearer edge of the band; 0 inside."""
    if _UNKNOWING.intersection(advice.reasons):
        return 0.0
    if advice.present < advice.band_low:
        return advice.present - advice.band_low
    return max(0.0, advice.present - advice.band_high)


def _smoothed(memory: Memory, sight: Sight, watch: WatchConfig) -> dict[str, float]:
    weight = 1 - math.exp(-max(0.0, sight.at - memory.at) / watch.smoothing_s)
    return {
        name: memory.speeds.get(name, node.episodes_per_s) * (1 - weight) + node.episodes_per_s * weight
        for name, node in sight.nodes().items()
        if node.state is NodeState.READY
    }


def _slow(sight: Sight, speeds: Mapping[str, float], watch: WatchConfig) -> list[str]:
    """Nodes that are slower than their like; of idle nodes nothing is known."""
    nodes = {name: node for name, node in sight.nodes().items() if name in speeds}
    usual = usual_speeds(nodes, speeds)
    return [
        name
        for name, node in nodes.items()
        if node.leased > 0 and speeds[name] < watch.straggler_speed * usual.get(node.facts.hardware, 0.0)
    ]


def usual_speeds(nodes: Mapping[str, NodeReport], speeds: Mapping[str, float]) -> dict[str, float]:
    """What nodes do where they do best, by hardware: the highest median of any pool, and of all; none if few tell.

    So a whole region is seen to be slow, though most of all nodes are there and they are like each other.
    """
    alike: dict[str, list[str]] = defaultdict(list)
    for name, node in nodes.items():
        alike[node.facts.hardware].append(name)
    return {
        hardware: _highest_median(names, nodes, speeds)
        for hardware, names in alike.items()
        if len(names) >= LEAST_NODES
    }


def _highest_median(names: list[str], nodes: Mapping[str, NodeReport], speeds: Mapping[str, float]) -> float:
    by_pool: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_pool[nodes[name].facts.pool].append(name)
    groups = [names, *(group for group in by_pool.values() if len(group) >= LEAST_OF_POOL)]
    return max(median(speeds[name] for name in group) for group in groups)


def _of_pool(pool: Pool, sight: Sight, watch: WatchConfig) -> Iterator[Signal]:
    """What the fleet's own ledger and journal tell."""
    name = pool.spec.id
    failures = launch_failures(sight, name, within_s=watch.window_s)
    is_broken = pool.breaker_until is not None and pool.breaker_until > sight.at
    if failures >= watch.launch_failures or is_broken:
        yield Signal(kind=SignalKind.LAUNCH_FAILURES, pool=name, value=float(failures))
    went = [one for one in sight.instances if one.pool == name and _was_lost(one, sight.at - watch.window_s)]
    lost = {one.id for one in went} | _silent(name, sight)
    present = sum(pool.nodes.values()) + sum(1 for one in went if one.state is InstanceState.GONE)
    if len(lost) >= max(2, math.ceil(watch.lost_share * present)):
        yield Signal(kind=SignalKind.PREEMPTION_WAVE, pool=name, value=float(len(lost)))


def _of_report(pool: Pool, memory: Memory, sight: Sight, watch: WatchConfig) -> Iterator[Signal]:
    """What dataflow's report tells."""
    name = pool.spec.id
    advice = sight.advice(name)
    if advice is not None and memory.breaches.get(name, 0) > watch.band_ticks and not _is_kept(pool, advice, sight):
        yield Signal(kind=SignalKind.BAND_BREACH, pool=name, value=round(_distance(advice), 2))
    caps = sorted(cap.value for cap in set(advice.capped_by) - _QUIET_CAPS) if advice is not None else []
    if caps:
        yield Signal(kind=SignalKind.CAP_HIT, pool=name, subject=",".join(caps), value=float(len(caps)))
    nodes = sight.nodes()
    usual = usual_speeds({key: nodes[key] for key in memory.speeds if key in nodes}, memory.speeds)
    for node, since in memory.slow_since.items():
        if nodes[node].facts.pool != name or sight.at - since < watch.straggler_s:
            continue
        best = usual.get(nodes[node].facts.hardware, 0.0)
        if best > 0:
            share = round(memory.speeds[node] / best, 3)
            yield Signal(kind=SignalKind.STRAGGLER, pool=name, subject=node, value=share)


def _is_kept(pool: Pool, advice: PoolAdvice, sight: Sight) -> bool:
    """Whether somebody keeps it above the band: that it is there is what they want."""
    is_held = pool.hold_until is not None and pool.hold_until > sight.at
    return is_held and _distance(advice) > 0


def launch_failures(sight: Sight, pool: PoolId, *, within_s: float) -> int:
    """Launches of a pool that failed lately, by the journal."""
    return sum(
        1
        for entry in sight.decisions
        if entry.kind == "launch_failed" and entry.pool == pool and sight.at - entry.at <= within_s
    )


def _was_lost(instance: Instance, since: float) -> bool:
    """It worked, and began to go since then without having been asked: with its provider's notice or without one."""
    return instance.was_lost and (instance.left_at or 0.0) >= since


def _silent(pool: str, sight: Sight) -> set[str]:
    """Living instances whose nodes are not heard any more."""
    alive = {one.id for one in sight.instances if one.pool == pool and one.gone_at is None}
    return {name for name, node in sight.nodes().items() if name in alive and node.state is NodeState.LOST}
