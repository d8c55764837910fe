"""Whether nodes or the bound on staleness are what a trainer waits for.

What a gate lets out is out until its last result is there, so a trainer can be fed by at most

    groups a second  <=  groups that may be out / seconds that a group is out      (Little's law)

however many nodes there are. When a trainer waits at that limit, nodes ask and get nothing: their slots are empty.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports import Report
from astraflow.scaling.signals import GateSignals

IDLE_SHARE = 0.1
"""Of the slots: fewer are empty between one task and the next, and while a pool is as large as it is meant to be."""

CLOSED_SHARE = 0.1
"""Of the time: a gate that was closed for less is not why slots were empty."""

STEPS, LEAST_S = 3.0, 60.0
"""So many steps are looked at, and at least so long: within one, slots are full at first and empty in the end."""

KEPT_S = 3600.0
GAP_S = 90.0
"""Between reports that are farther apart nobody looked."""


def is_gated(gate: GateSignals | None, *, wait_high: float) -> bool:
    """Whether a trainer waits, and not for nodes. wait_high: share of the time that is no more by chance."""
    if gate is None or gate.wait <= wait_high:
        return False
    return gate.idle_share >= IDLE_SHARE and gate.closed >= CLOSED_SHARE


def staleness_needed(*, group_s: float, step_s: float, produced_per_usable: float = 1.0) -> int:
    """The bound with which groups that take so long keep a trainer busy whose steps take so long, in versions.

    Of the `(bound + 1) * batch` groups that a gate lets out, one batch is trained and one is to be complete when that
    ends, so `(bound - 1) * batch` are left to be in work. In work are as many as are produced within `group_s`:
    `produced_per_usable * batch` every `step_s`.

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
    """Sums since somebody began to look, at one moment."""

    closed_s: Mapping[PolicyId, float]
    waited_s: Mapping[PolicyId, float]
    idle_slot_s: float
    slot_s: float
    out_group_s: float
    """Groups times the time that they were out."""
    groups: float
    """That came back."""


class GateWindow:
    """The totals of the last hour, to be compared over as many seconds as the trainers' steps take."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, GateTotals]] = deque()

    def add(self, at: float, totals: GateTotals) -> None:
        """Note where the sums are now."""
        self._kept.append((at, totals))
        while self._kept[0][0] < at - KEPT_S:
            self._kept.popleft()

    def signals(self, bounds: Mapping[PolicyId, int], *, step_s: float) -> GateSignals | None:
        """Over the latest few steps. bounds: on staleness. step_s: of the slowest trainer, its wait included."""
        if not self._kept or step_s <= 0:
            return None
        at, now = self._kept[-1]
        over_s = max(LEAST_S, STEPS * step_s)
        since, then = next((one for one in reversed(self._kept) if at - one[0] >= over_s), self._kept[0])
        passed_s = at - since
        if passed_s < min(over_s, LEAST_S) or not bounds:
            return None
        waits = {policy: now.waited_s.get(policy, 0.0) - then.waited_s.get(policy, 0.0) for policy in bounds}
        closed = {policy: now.closed_s.get(policy, 0.0) - then.closed_s.get(policy, 0.0) for policy in bounds}
        waiting = max(waits, key=lambda policy: waits[policy])
        is_own = closed[waiting] >= CLOSED_SHARE * passed_s
        policy = waiting if is_own else max(closed, key=lambda one: closed[one])
        groups = now.groups - then.groups
        return GateSignals(
            policy=policy,
            waiting=waiting,
            closed=_share(closed[policy], passed_s),
            wait=_share(waits[waiting], passed_s),
            idle_slots=(now.idle_slot_s - then.idle_slot_s) / passed_s,
            slots=(now.slot_s - then.slot_s) / passed_s,
            group_s=(now.out_group_s - then.out_group_s) / groups if groups > 0 else 0.0,
            max_staleness=bounds[policy],
        )


class GateWatch:
    """Adds up what reports say of gates, slots and groups that are out."""

    def __init__(self) -> None:
        self._last: Report | None = None
        self._used: dict[str, tuple[float, float]] = {}
        """Of each node, its full and its empty seconds so far."""
        self._closed_s: dict[PolicyId, float] = {}
        self._idle_slot_s = self._slot_s = self._out_group_s = 0.0
        self._groups = 0.0

    def observe(self, report: Report) -> None:
        """The next report. What it says of gates and groups held since the one before."""
        last, self._last = self._last, report
        self._observe_slots(report)
        if last is None or not 0 < report.at - last.at <= GAP_S:
            return
        passed_s = report.at - last.at
        for stream in report.streams:
            is_closed = stream.issue_room <= 0
            self._closed_s[stream.policy] = self._closed_s.get(stream.policy, 0.0) + passed_s * is_closed
        self._out_group_s += passed_s * sum(flow.open for flow in report.flows)
        self._groups += max(0.0, _closed(report) - _closed(last))

    def totals(self, waited_s: Mapping[PolicyId, float]) -> GateTotals:
        """Until the latest report. waited_s: by each trainer in all."""
        return GateTotals(
            closed_s=dict(self._closed_s),
            waited_s=waited_s,
            idle_slot_s=self._idle_slot_s,
            slot_s=self._slot_s,
            out_group_s=self._out_group_s,
            groups=self._groups,
        )

    def _observe_slots(self, report: Report) -> None:
        used: dict[str, tuple[float, float]] = {}
        for node in report.nodes:
            full_s, empty_s = (max(0.0, node.counters.get(name, 0.0)) for name in ("busy_s", "blocked_s"))
            known = self._used.get(str(node.id), (full_s, empty_s))
            idle_s, worked_s = max(0.0, empty_s - known[1]), max(0.0, full_s - known[0])
            self._idle_slot_s += node.facts.capacity * idle_s
            self._slot_s += node.facts.capacity * (idle_s + worked_s)
            used[str(node.id)] = (full_s, empty_s)
        self._used = used


def _closed(report: Report) -> float:
    return float(sum(flow.admitted + sum(flow.dropped.values()) for flow in report.flows))


def _share(part_s: float, whole_s: float) -> float:
    return min(1.0, max(0.0, part_s / whole_s))
