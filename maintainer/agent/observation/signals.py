"""Detects signals: a pure function of a snapshot and a memory. Costs no tokens.

A signal stays active as long as its cause. A new signal wakes the maintainer.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

from astraflow.contract.fleet.instances import Instance, InstanceState
from astraflow.contract.fleet.pools import Pool
from astraflow.contract.fleet.recommendations import LimitInEffect, PoolRecommendation, Reason
from astraflow.contract.ids import PoolId
from astraflow.contract.learning_faults import STEP, LearningFault
from astraflow.contract.record_kinds import RecordKind, Severity
from astraflow.contract.reports.report import NodeReport, NodeState
from maintainer.agent.config import WatchConfig
from maintainer.agent.observation.snapshot import Snapshot

FAULTS = frozenset(fault.value for fault in LearningFault)

MIN_NODES_FOR_MEDIAN = 3
"""Minimum nodes of a hardware type for a meaningful median."""
MIN_POOL_NODES_FOR_MEDIAN = 2
"""Minimum nodes of a pool for its median: a single node may be fast by chance."""

_REASONS_WITHOUT_BAND = frozenset(
    {
        Reason.UNMEASURED,
        Reason.COLD_START,
        Reason.SWITCHED_OFF,
        Reason.STALE_INPUT,
        Reason.STALLED,
        Reason.PAUSED,
        Reason.IDLE,
    }
)
"""Reasons under which the band does not apply."""
_LIMITS_SET_BY_PEOPLE = frozenset({LimitInEffect.MODE, LimitInEffect.HOLD})
"""Limits that a person set on the pool."""


class SignalKind(Enum):
    """Kinds of signals."""

    BAND_BREACH = "band_breach"
    """A pool stays outside the rule's band. value: nodes from the nearer edge, negative for too few."""
    LIMIT_REACHED = "limit_reached"
    """Bounds, budget or quota keep the rule from its target. value: number of limits."""
    LAUNCH_FAILURES = "launch_failures"
    """Launches fail. value: failures within the window."""
    PREEMPTION_WAVE = "preemption_wave"
    """Nodes were preempted or lost. value: nodes within the window."""
    STRAGGLER = "straggler"
    """A node is much slower than the same hardware in its fastest pool. value: share of that speed."""
    LEARNING_FAULT = "learning_fault"
    """The run doctor finds a fault of learning that is no mere hint. value: step at which it was found first."""
    NO_REPORT = "no_report"
    """Dataflow has no new report. value: age in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Condition that wakes the maintainer."""

    kind: SignalKind
    pool: str = ""
    subject: str = ""
    """Node, limits or policy concerned; empty if the whole pool is."""
    fault: str = ""
    """Fault of learning: a value of `LearningFault`; empty for other kinds."""
    value: float = 0.0

    @property
    def key(self) -> tuple[str, str, str]:
        """Identity of the condition; equal while the same condition continues."""
        return self.kind.value, self.pool or self.fault, self.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalMemory:
    """State carried from one snapshot to the next."""

    at: float = 0.0
    ticks: Mapping[str, float] = field(default_factory=dict)
    """Time of the rule's latest tick, by pool."""
    breaches: Mapping[str, int] = field(default_factory=dict)
    """Consecutive ticks outside the band, by pool."""
    speeds: Mapping[str, float] = field(default_factory=dict)
    """Smoothed episodes per second, by node."""
    slow_since: Mapping[str, float] = field(default_factory=dict)


def detect_signals(
    memory: SignalMemory, snapshot: Snapshot, watch: WatchConfig
) -> tuple[SignalMemory, tuple[Signal, ...]]:
    """Returns the updated memory and all active signals, the most urgent kinds first."""
    is_report_stale = snapshot.report is None or (snapshot.report_age_s or 0.0) > watch.no_report_s
    updated = memory if is_report_stale else _updated_memory(memory, snapshot, watch)
    signals: list[Signal] = []
    for pool in snapshot.fleet.pools:
        signals += _fleet_signals(pool, snapshot, watch)
        if not is_report_stale:
            signals += _report_signals(pool, updated, snapshot, watch)
    if is_report_stale:
        signals.append(Signal(kind=SignalKind.NO_REPORT, value=round(snapshot.report_age_s or 0.0, 1)))
    order = [SignalKind.LAUNCH_FAILURES, SignalKind.PREEMPTION_WAVE, SignalKind.BAND_BREACH, *SignalKind]
    learning = () if is_report_stale else tuple(_learning_signals(snapshot))
    return updated, (*sorted(signals, key=lambda signal: (order.index(signal.kind), signal.key)), *learning)


def _learning_signals(snapshot: Snapshot) -> Iterator[Signal]:
    """Signals from the run doctor's findings, the most urgent first; hints wake nobody."""
    for record in snapshot.report.learning_faults if snapshot.report is not None else ():
        if record.severity is not Severity.INFO and record.cause in FAULTS:
            step = record.values.get(STEP, 0)
            yield Signal(
                kind=SignalKind.LEARNING_FAULT,
                subject=record.subject,
                fault=record.cause,
                value=float(step) if isinstance(step, int | float) else 0.0,
            )


def _updated_memory(memory: SignalMemory, snapshot: Snapshot, watch: WatchConfig) -> SignalMemory:
    ticks, breaches = dict(memory.ticks), dict(memory.breaches)
    for recommendation in snapshot.report.recommendations if snapshot.report is not None else ():
        if recommendation.at > ticks.get(recommendation.pool, -math.inf):
            ticks[recommendation.pool] = recommendation.at
            breaches[recommendation.pool] = (
                breaches.get(recommendation.pool, 0) + 1 if _nodes_outside_band(recommendation) else 0
            )
    speeds = _smoothed_speeds(memory, snapshot, watch)
    slow = _slow_nodes(snapshot, speeds, watch)
    since = {name: memory.slow_since.get(name, snapshot.at) for name in slow}
    return SignalMemory(at=snapshot.at, ticks=ticks, breaches=breaches, speeds=speeds, slow_since=since)


def _nodes_outside_band(recommendation: PoolRecommendation) -> float:
    """Nodes from the nearer edge of the band; 0 inside."""
    if _REASONS_WITHOUT_BAND.intersection(recommendation.reasons):
        return 0.0
    if recommendation.present < recommendation.band_low:
        return recommendation.present - recommendation.band_low
    return max(0.0, recommendation.present - recommendation.band_high)


def _smoothed_speeds(memory: SignalMemory, snapshot: Snapshot, watch: WatchConfig) -> dict[str, float]:
    weight = 1 - math.exp(-max(0.0, snapshot.at - memory.at) / watch.smoothing_s)
    return {
        name: memory.speeds.get(name, node.episodes_per_s) * (1 - weight) + node.episodes_per_s * weight
        for name, node in snapshot.nodes().items()
        if node.state is NodeState.READY
    }


def _slow_nodes(snapshot: Snapshot, speeds: Mapping[str, float], watch: WatchConfig) -> list[str]:
    """Nodes slower than the same hardware elsewhere; idle nodes have no meaningful speed."""
    nodes = {name: node for name, node in snapshot.nodes().items() if name in speeds}
    best_speeds = best_median_speeds(nodes, speeds)
    return [
        name
        for name, node in nodes.items()
        if node.leased > 0 and speeds[name] < watch.straggler_speed * best_speeds.get(node.facts.hardware, 0.0)
    ]


def best_median_speeds(nodes: Mapping[str, NodeReport], speeds: Mapping[str, float]) -> dict[str, float]:
    """Highest median speed of any pool (or of all nodes), by hardware; hardware with few nodes is left out.

    Detects a slow region even if it holds most of the nodes and they are equally slow.
    """
    names_by_hardware: dict[str, list[str]] = defaultdict(list)
    for name, node in nodes.items():
        names_by_hardware[node.facts.hardware].append(name)
    return {
        hardware: _highest_median(names, nodes, speeds)
        for hardware, names in names_by_hardware.items()
        if len(names) >= MIN_NODES_FOR_MEDIAN
    }


def _highest_median(names: list[str], nodes: Mapping[str, NodeReport], speeds: Mapping[str, float]) -> float:
    by_pool: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_pool[nodes[name].facts.pool].append(name)
    groups = [names, *(group for group in by_pool.values() if len(group) >= MIN_POOL_NODES_FOR_MEDIAN)]
    return max(median(speeds[name] for name in group) for group in groups)


def _fleet_signals(pool: Pool, snapshot: Snapshot, watch: WatchConfig) -> Iterator[Signal]:
    """Signals from the fleet's ledger and journal."""
    name = pool.spec.id
    failures = launch_failures(snapshot, name, within_s=watch.window_s)
    is_breaker_open = pool.breaker_until is not None and pool.breaker_until > snapshot.at
    if failures >= watch.launch_failures or is_breaker_open:
        yield Signal(kind=SignalKind.LAUNCH_FAILURES, pool=name, value=float(failures))
    departed = [
        instance
        for instance in snapshot.instances
        if instance.pool == name and _was_lost(instance, snapshot.at - watch.window_s)
    ]
    lost = {instance.id for instance in departed} | _unreachable_instances(name, snapshot)
    present = sum(pool.nodes.values()) + sum(1 for instance in departed if instance.state is InstanceState.GONE)
    if len(lost) >= max(2, math.ceil(watch.preemption_share * present)):
        yield Signal(kind=SignalKind.PREEMPTION_WAVE, pool=name, value=float(len(lost)))


def _report_signals(pool: Pool, memory: SignalMemory, snapshot: Snapshot, watch: WatchConfig) -> Iterator[Signal]:
    """Signals from dataflow's report."""
    name = pool.spec.id
    recommendation = snapshot.recommendation(name)
    if (
        recommendation is not None
        and memory.breaches.get(name, 0) > watch.band_ticks
        and not _has_hold(pool, recommendation, snapshot)
    ):
        yield Signal(kind=SignalKind.BAND_BREACH, pool=name, value=round(_nodes_outside_band(recommendation), 2))
    limits = (
        sorted(limit.value for limit in set(recommendation.limited_by) - _LIMITS_SET_BY_PEOPLE)
        if recommendation is not None
        else []
    )
    if limits:
        yield Signal(kind=SignalKind.LIMIT_REACHED, pool=name, subject=",".join(limits), value=float(len(limits)))
    nodes = snapshot.nodes()
    best_speeds = best_median_speeds({key: nodes[key] for key in memory.speeds if key in nodes}, memory.speeds)
    for node, since in memory.slow_since.items():
        if nodes[node].facts.pool != name or snapshot.at - since < watch.straggler_s:
            continue
        best = best_speeds.get(nodes[node].facts.hardware, 0.0)
        if best > 0:
            share = round(memory.speeds[node] / best, 3)
            yield Signal(kind=SignalKind.STRAGGLER, pool=name, subject=node, value=share)


def _has_hold(pool: Pool, recommendation: PoolRecommendation, snapshot: Snapshot) -> bool:
    """True if a hold keeps the pool above the band, which is then intended."""
    is_held = pool.hold_until_at is not None and pool.hold_until_at > snapshot.at
    return is_held and _nodes_outside_band(recommendation) > 0


def launch_failures(snapshot: Snapshot, pool: PoolId, *, within_s: float) -> int:
    """Failed launches of a pool within `within_s`, from the journal."""
    return sum(
        1
        for entry in snapshot.decisions
        if entry.kind is RecordKind.LAUNCH_FAILED and entry.subject == pool and snapshot.at - entry.at <= within_s
    )


def _was_lost(instance: Instance, since: float) -> bool:
    """True if the instance worked and was preempted or lost after `since`."""
    return instance.was_lost and (instance.left_at or 0.0) >= since


def _unreachable_instances(pool: str, snapshot: Snapshot) -> set[str]:
    """Running instances whose nodes dataflow reports as lost."""
    alive = {instance.id for instance in snapshot.instances if instance.pool == pool and instance.gone_at is None}
    return {name for name, node in snapshot.nodes().items() if name in alive and node.state is NodeState.LOST}
