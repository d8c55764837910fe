"""Derives the sizer's signals from the reports of a live or recorded run."""

from collections import deque
from collections.abc import Mapping

import numpy as np

from astraflow.contract.ids import PolicyId, PoolId
from astraflow.contract.reports.report import NodeReport, NodeState, Report
from astraflow.scaling.measurement.gates import GateTracker, GateWindow
from astraflow.scaling.measurement.lifecycle import Phase
from astraflow.scaling.measurement.signals import LaunchSignals, NodeKind, NodeTable, Signals
from astraflow.scaling.measurement.trainers import TrainerTracker
from astraflow.scaling.measurement.windows import CountedWork, Window, Work, WorkWindow
from astraflow.scaling.options import SizerOptions, Spec

DAY_S = 86_400.0
DELAYS = 20
"""Latest launch delays that are kept for each pool. Count."""

_PHASES = {
    NodeState.JOINING: Phase.WARMING,
    NodeState.READY: Phase.READY,
    NodeState.DRAINING: Phase.DRAINING,
    NodeState.LOST: Phase.GONE,
    NodeState.GONE: Phase.GONE,
}
_UNCOUNTED = ("retried", "superseded", "duplicate", "late", "unknown")
"""Outcomes of episodes that belong to no finished group."""


class Observer:
    """Accumulates reports, in the order in which they were made, into signals."""

    def __init__(self, spec: Spec) -> None:
        options: SizerOptions = spec.options
        self._spec = spec
        self._long = WorkWindow(
            usual_s=options.window_long_s, widest_s=options.window_widest_s, groups=options.window_groups
        )
        self._short: Window[Work] = Window(options.window_short_s)
        self._counted = CountedWork(longest_s=options.window_long_s)
        self._trainers: dict[PolicyId, TrainerTracker] = {}
        self._gates = GateTracker()
        self._gated = GateWindow()
        self._report: Report | None = None
        self._paused_at: float | None = None
        self._done: dict[str, float] = {}
        self._produced = 0.0
        """Episodes finished since the first report. Count."""
        self._ready_at: dict[str, float] = {}
        self._delays: dict[PoolId, deque[float]] = {}
        self.dollars_today = 0.0
        self._day, self._day_hours = 0.0, 0.0
        """Day of `dollars_today`, days since 1970, and hours of reports in it."""

    def observe(self, report: Report, *, ordered_at: Mapping[PoolId, float] | None = None) -> None:
        """Adds the next report. ordered_at: Unix seconds since when each pool has had fewer nodes than its target."""
        self._add_cost(report)
        for stream in report.streams:
            tracker = self._trainers.get(stream.policy)
            if tracker is None:
                tracker = self._trainers[stream.policy] = TrainerTracker(last=stream, stepped_at=report.at)
            tracker.observe(stream, at=report.at)
        self._gates.observe(report)
        episodes_done = {str(node.id): max(0.0, node.counters.get("episodes_done", 0.0)) for node in report.nodes}
        self._produced += sum(max(0.0, value - self._done.get(node, 0.0)) for node, value in episodes_done.items())
        self._done = episodes_done
        self._note_arrivals(report, ordered_at or {})
        is_paused = bool(report.flows) and all(flow.is_paused for flow in report.flows)
        self._paused_at = (report.at if self._paused_at is None else self._paused_at) if is_paused else None
        self._report = report

    @property
    def measured_steps(self) -> int:
        """Steps of the trainer of which most were measured, up to those that count."""
        return max((len(tracker.steps) for tracker in self._trainers.values()), default=0)

    def signals(self) -> Signals:
        """Returns the signals at the latest report. Each call adds a snapshot to the windows.

        Raises: ValueError without a report.
        """
        report = self._report
        if report is None:
            raise ValueError("cannot derive signals: no report was observed; call observe() first")
        per_group = episodes_per_group(report)
        kinds, nodes = self._nodes(report, per_group)
        self._gated.add(
            report.at, self._gates.totals({name: tracker.waited_s for name, tracker in self._trainers.items()})
        )
        return Signals(
            at=report.at,
            kinds=kinds,
            nodes=nodes,
            streams=tuple(
                tracker.signals(at=report.at, produced=self._produced / per_group)
                for tracker in self._trainers.values()
            ),
            gate=self._gated.signals(
                {stream.policy: stream.max_staleness for stream in report.streams},
                step_s=max((tracker.step_s for tracker in self._trainers.values()), default=0.0),
            ),
            launches={pool: LaunchSignals(delays_s=tuple(delays)) for pool, delays in self._delays.items()},
            partial_pools=_partial_pools(report),
            paused_s=None if self._paused_at is None else report.at - self._paused_at,
            dollars_today=self.dollars_today,
        )

    def _nodes(self, report: Report, per_group: float) -> tuple[tuple[NodeKind, ...], NodeTable]:
        members = [node for node in report.nodes if _PHASES[node.state] is not Phase.GONE]
        kinds = sorted(
            {_kind(node) for node in members}, key=lambda kind: (kind.pool, kind.hardware, kind.price_per_hour)
        )
        kind_indices = {kind: number for number, kind in enumerate(kinds)}
        episodes = Work(
            ids=tuple(str(node.id) for node in members),
            groups=_column([node.counters.get("episodes_done", 0.0) for node in members]),
            busy_s=_column([node.counters.get("busy_s", 0.0) for node in members]),
        )
        work = self._counted.of(episodes, _column([node.lease_limit for node in members]))
        self._short.add(report.at, work)
        groups_long, busy_long_s = self._long.add(report.at, work, per_group=per_group)
        episodes_short, busy_short_s = work.since(self._short.oldest[1])
        return tuple(kinds), NodeTable(
            ids=work.ids,
            kind=np.array([kind_indices[_kind(node)] for node in members], np.int64),
            phase=np.array([_PHASES[node.state] for node in members], np.int64),
            age_s=_column([report.at - self._ready_at.get(str(node.id), node.joined_at) for node in members]),
            silent_s=_column([node.heartbeat_age_s for node in members]),
            groups_long=groups_long,
            busy_long_s=busy_long_s,
            groups_short=episodes_short / per_group,
            busy_short_s=busy_short_s,
        )

    def _note_arrivals(self, report: Report, ordered_at: Mapping[PoolId, float]) -> None:
        ready = [node for node in report.nodes if node.state is NodeState.READY]
        for node in ready:
            if str(node.id) in self._ready_at:
                continue
            self._ready_at[str(node.id)] = report.at
            if self._report is not None and node.facts.pool in ordered_at:
                delays = self._delays.setdefault(node.facts.pool, deque(maxlen=DELAYS))
                delays.append(max(0.0, report.at - ordered_at[node.facts.pool]))
        reported_ids = {str(node.id) for node in report.nodes}
        self._ready_at = {node: at for node, at in self._ready_at.items() if node in reported_ids}

    def _add_cost(self, report: Report) -> None:
        if self._report is None:
            self._day = report.at // DAY_S
            return
        hours = max(0.0, report.at - self._report.at) / 3600
        self._day_hours += hours
        if report.at // DAY_S > self._day or self._day_hours > DAY_S / 3600:  # never back: nor is the budget renewed
            self._day, self._day_hours, self.dollars_today = report.at // DAY_S, 0.0, 0.0
        members = [node for node in report.nodes if _PHASES[node.state] is not Phase.GONE]
        prices = (self._spec.pool(node.facts.pool).price_per_hour or node.facts.price_per_hour for node in members)
        self.dollars_today += hours * sum(max(0.0, price) for price in prices)


def episodes_per_group(report: Report) -> float:
    """Returns the mean number of episodes of an issued group, over the run.

    Members without a result are queued or leased. They count, because at first most groups are open.
    """
    members = sum(
        flow.tasks_queued
        + flow.tasks_leased
        + sum(count for outcome, count in flow.episodes.items() if outcome not in _UNCOUNTED)
        for flow in report.flows
    )
    issued = sum(flow.issued for flow in report.flows)
    return max(1.0, members / issued) if issued else 1.0


def _partial_pools(report: Report) -> tuple[PoolId, ...]:
    policies = [stream.policy for stream in report.streams]
    members = [node for node in report.nodes if _PHASES[node.state] is not Phase.GONE]
    return tuple(sorted({node.facts.pool for node in members if not node.facts.serves(policies)}))


def _kind(node: NodeReport) -> NodeKind:
    price = node.facts.price_per_hour
    return NodeKind(pool=node.facts.pool, hardware=node.facts.hardware, price_per_hour=price if price > 0 else 0.0)


def _column(values: list[float]) -> np.ndarray:
    return np.array(values, np.float64)
