"""Distinguishes a lack of nodes from a staleness bound that is too low as the cause of a trainer's wait.

An issued group is open until its last result arrives, so a trainer can be supplied with at most

    groups a second  <=  open groups allowed / seconds that a group is open      (Little's law)

for any number of nodes. When a trainer waits at that limit, nodes request tasks and get none: their slots are empty.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.report import Report
from astraflow.scaling.measurement.signals import GateSignals

IDLE_SHARE = 0.1
"""Share of idle slots that indicates gating; fewer are idle between tasks even in a pool of the right size."""

CLOSED_SHARE = 0.1
"""Share of time closed from which a gate can be the cause of idle slots."""

WINDOW_STEPS, MIN_WINDOW_S = 3.0, 60.0
"""Window in steps, and its minimum in seconds. Within one step, slots are full at first and empty at the end."""

HISTORY_S = 3600.0
MAX_REPORT_GAP_S = 90.0
"""Gap between reports above which the time between them is not counted. Seconds."""


def is_gated(gate: GateSignals | None, *, wait_high: float) -> bool:
    """Returns whether a trainer waits for a staleness gate. wait_high: share of time waiting that exceeds noise."""
    if gate is None or gate.wait_share <= wait_high:
        return False
    return gate.idle_share >= IDLE_SHARE and gate.closed_share >= CLOSED_SHARE


def staleness_needed(*, group_s: float, step_s: float, produced_per_usable: float = 1.0) -> int:
    """Returns the staleness bound, in versions, that keeps a trainer with steps of `step_s` busy.

    A gate lets out `(bound + 1) * batch` groups. One batch is in training and the next must be complete when that ends,
    so `(bound - 1) * batch` groups are in work. This must equal the production within `group_s`, at
    `produced_per_usable * batch` groups every `step_s`.

    >>> staleness_needed(group_s=2.75, step_s=1.875)
    3
    >>> staleness_needed(group_s=2.75, step_s=1.875, produced_per_usable=1.5)
    4
    >>> staleness_needed(group_s=30, step_s=120)
    2
    """
    return math.ceil(1 + produced_per_usable * group_s / step_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateTotals:
    """Cumulative sums of gates and slots at one time."""

    closed_s: Mapping[PolicyId, float]
    waited_s: Mapping[PolicyId, float]
    idle_slot_s: float
    slot_s: float
    open_group_s: float
    """Sum over groups of the time that they were open. Group-seconds."""
    groups: float
    """Groups that returned."""


class GateWindow:
    """Totals of the last hour, compared over a window of a few trainer steps."""

    def __init__(self) -> None:
        self._history: deque[tuple[float, GateTotals]] = deque()

    def add(self, at: float, totals: GateTotals) -> None:
        self._history.append((at, totals))
        while self._history[0][0] < at - HISTORY_S:
            self._history.popleft()

    def signals(self, bounds: Mapping[PolicyId, int], *, step_s: float) -> GateSignals | None:
        """Returns the signals over the latest few steps; None without enough data.

        bounds: staleness bounds by policy. step_s: step time of the slowest trainer including waits, in seconds.
        """
        if not self._history or step_s <= 0:
            return None
        at, now = self._history[-1]
        window_s = max(MIN_WINDOW_S, WINDOW_STEPS * step_s)
        since, then = next(
            (snapshot for snapshot in reversed(self._history) if at - snapshot[0] >= window_s), self._history[0]
        )
        passed_s = at - since
        if passed_s < min(window_s, MIN_WINDOW_S) or not bounds:
            return None
        waits = {policy: now.waited_s.get(policy, 0.0) - then.waited_s.get(policy, 0.0) for policy in bounds}
        closed = {policy: now.closed_s.get(policy, 0.0) - then.closed_s.get(policy, 0.0) for policy in bounds}
        waiting = max(waits, key=lambda policy: waits[policy])
        is_own = closed[waiting] >= CLOSED_SHARE * passed_s
        policy = waiting if is_own else max(closed, key=lambda snapshot: closed[snapshot])
        groups = now.groups - then.groups
        return GateSignals(
            policy=policy,
            waiting_policy=waiting,
            closed_share=_share(closed[policy], passed_s),
            wait_share=_share(waits[waiting], passed_s),
            idle_slots=(now.idle_slot_s - then.idle_slot_s) / passed_s,
            slots=(now.slot_s - then.slot_s) / passed_s,
            group_s=(now.open_group_s - then.open_group_s) / groups if groups > 0 else 0.0,
            max_staleness=bounds[policy],
        )


class GateTracker:
    """Accumulates gates, slots and open groups from reports."""

    def __init__(self) -> None:
        self._last: Report | None = None
        self._used: dict[str, tuple[float, float]] = {}
        """Busy and idle seconds of each node so far."""
        self._closed_s: dict[PolicyId, float] = {}
        self._idle_slot_s = self._slot_s = self._open_group_s = 0.0
        self._groups = 0.0

    def observe(self, report: Report) -> None:
        """Adds the next report. Its gates and open groups count for the time since the previous report."""
        last, self._last = self._last, report
        self._observe_slots(report)
        if last is None or not 0 < report.at - last.at <= MAX_REPORT_GAP_S:
            return
        passed_s = report.at - last.at
        for stream in report.streams:
            is_closed = stream.issue_headroom <= 0
            self._closed_s[stream.policy] = self._closed_s.get(stream.policy, 0.0) + passed_s * is_closed
        self._open_group_s += passed_s * sum(flow.open for flow in report.flows)
        self._groups += max(0.0, _closed(report) - _closed(last))

    def totals(self, waited_s: Mapping[PolicyId, float]) -> GateTotals:
        """Returns the totals at the latest report. waited_s: total wait by policy."""
        return GateTotals(
            closed_s=dict(self._closed_s),
            waited_s=waited_s,
            idle_slot_s=self._idle_slot_s,
            slot_s=self._slot_s,
            open_group_s=self._open_group_s,
            groups=self._groups,
        )

    def _observe_slots(self, report: Report) -> None:
        used: dict[str, tuple[float, float]] = {}
        for node in report.nodes:
            full_s, empty_s = (max(0.0, node.counters.get(name, 0.0)) for name in ("busy_s", "blocked_s"))
            previous = self._used.get(str(node.id), (full_s, empty_s))
            idle_s, worked_s = max(0.0, empty_s - previous[1]), max(0.0, full_s - previous[0])
            self._idle_slot_s += node.lease_limit * idle_s
            self._slot_s += node.lease_limit * (idle_s + worked_s)
            used[str(node.id)] = (full_s, empty_s)
        self._used = used


def _closed(report: Report) -> float:
    return float(sum(flow.admitted + sum(flow.dropped.values()) for flow in report.flows))


def _share(part_s: float, whole_s: float) -> float:
    return min(1.0, max(0.0, part_s / whole_s))
