"""Windows over cumulative counts, and totals of staleness gates over them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astraflow.contract.ids import PolicyId
from astraflow.scaling.measurement.gates import GateTotals, GateTracker, GateWindow, is_gated
from astraflow.scaling.measurement.signals import GateSignals
from astraflow.scaling.measurement.windows import CountedWork, Window, Work, WorkWindow
from tests import make

SOLVER, VERIFIER = PolicyId("solver"), PolicyId("verifier")


def work(**groups: float) -> Work:
    """Returns nodes that were busy for ten seconds a group."""
    counts = np.array(list(groups.values()))
    return Work(ids=tuple(groups), groups=counts, busy_s=10 * counts)


def test_a_window_reaches_back_to_the_latest_snapshot_that_is_old_enough() -> None:
    window = Window[str](60)
    for at in (0, 30, 60, 89):
        window.add(at, f"at {at}")
    assert window.oldest == (0, "at 0")
    window.add(90, "at 90")
    assert window.oldest == (30, "at 30")


def test_work_since_a_snapshot_counts_new_nodes_from_zero() -> None:
    groups, busy_s = work(b=5.0, c=2.0).since(work(a=9.0, b=3.0))
    assert (groups.tolist(), busy_s.tolist()) == ([2.0, 2.0], [20.0, 20.0])


def test_a_work_window_grows_until_it_holds_enough_groups() -> None:
    window = WorkWindow(usual_s=60, widest_s=180, groups=10)
    measured = []
    for at, groups in ((0, 0.0), (60, 4.0), (120, 8.0), (180, 14.0), (240, 24.0), (300, 25.0)):
        measured.append(float(window.add(at, work(a=groups))[0][0]))
    # From 180 s on: 10 groups since 60 s, 10 since 180 s, 11 since 180 s.
    assert measured == [0.0, 4.0, 8.0, 10.0, 10.0, 11.0]
    assert float(window.add(600, work(a=25.0))[0][0]) == 0.0, "at most the widest window"


def test_groups_of_several_episodes_fill_a_window_later() -> None:
    window = WorkWindow(usual_s=60, widest_s=180, groups=10)
    window.add(0, work(a=0.0))
    window.add(60, work(a=22.0))
    groups, busy_s = window.add(120, work(a=40.0), per_group=2.0)
    assert (groups.tolist(), busy_s.tolist()) == ([20.0], [400.0])


@pytest.mark.parametrize(("groups", "counted"), [(3.0, 0.0), (4.0, 2.0)])
def test_first_tasks_do_not_count(groups: float, counted: float) -> None:
    counter = CountedWork(longest_s=100)
    counter.of(work(a=groups), np.array([4.0]))
    later = counter.of(work(a=6.0), np.array([4.0]))
    assert later.groups.tolist() == [counted]
    assert later.busy_s.tolist() == [10 * counted]


@pytest.mark.parametrize(("groups", "counted"), [(9.0, 0.0), (10.0, 10.0)])
def test_a_slow_start_counts_after_the_longest_time(groups: float, counted: float) -> None:
    assert CountedWork(longest_s=100).of(work(a=groups), np.array([40.0])).groups.tolist() == [counted]


def gate(**changes: Any) -> GateSignals:
    exactly: dict[str, Any] = {
        "closed_share": 0.1,
        "wait_share": 0.09,
        "idle_slots": 16.0,
        "slots": 160.0,
        "group_s": 200.0,
    }
    return GateSignals(policy=SOLVER, waiting_policy=SOLVER, max_staleness=2, **exactly | changes)


@pytest.mark.parametrize(
    ("changes", "is_at_gate"),
    [({}, True), ({"wait_share": 0.08}, False), ({"idle_slots": 15.9}, False), ({"closed_share": 0.09}, False)],
    ids=str,
)
def test_a_gate_is_the_cause_from_a_tenth_of_time_and_slots_on(changes: dict[str, float], is_at_gate: bool) -> None:
    assert is_gated(gate(**changes), wait_high=0.08) == is_at_gate
    assert not is_gated(None, wait_high=0.08)


def totals(at: float, **changes: Any) -> GateTotals:
    """Returns totals of two gates: the first is closed and waited for half of the time, 3 of 8 slots are idle."""
    values: dict[str, Any] = {
        "closed_s": {SOLVER: at / 2, VERIFIER: at / 4},
        "waited_s": {SOLVER: at / 2, VERIFIER: at / 8},
        "idle_slot_s": 3 * at,
        "slot_s": 8 * at,
        "open_group_s": 20 * at,
        "groups": at / 2,
    }
    return GateTotals(**values | changes)


def measured(*times_s: float, step_s: float = 10.0, **changes: Any) -> GateSignals | None:
    window = GateWindow()
    for at in times_s:
        window.add(at, totals(at, **changes if at else {}))
    return window.signals({SOLVER: 2, VERIFIER: 4}, step_s=step_s)


def test_a_gate_is_measured_over_three_steps_or_a_minute() -> None:
    for step_s in (10.0, 20.0, 40.0):
        signals = measured(0.0, 100.0, 160.0, 220.0, step_s=step_s)
        assert signals is not None
        assert (signals.policy, signals.waiting_policy, signals.max_staleness) == (SOLVER, SOLVER, 2)
        assert (signals.closed_share, signals.wait_share) == (0.5, 0.5)
        assert (signals.idle_slots, signals.slots, signals.group_s) == (3.0, 8.0, 40.0)


def test_without_a_minute_a_step_or_a_policy_no_gate_is_measured() -> None:
    assert measured(0.0, 59.0) is None
    assert measured(0.0, 60.0) is not None
    assert measured(0.0, 60.0, step_s=0.0) is None
    assert GateWindow().signals({SOLVER: 2}, step_s=10.0) is None
    window = GateWindow()
    window.add(0.0, totals(0.0))
    window.add(60.0, totals(60.0))
    assert window.signals({}, step_s=10.0) is None


@pytest.mark.parametrize(("closed_s", "policy", "bound"), [(10.0, SOLVER, 2), (9.0, VERIFIER, 4)])
def test_the_gate_of_the_other_policy_counts_where_the_own_one_is_open(
    closed_s: float, policy: PolicyId, bound: int
) -> None:
    signals = measured(0.0, 100.0, closed_s={SOLVER: closed_s, VERIFIER: 50.0})
    assert signals is not None
    assert (signals.policy, signals.waiting_policy, signals.max_staleness) == (policy, SOLVER, bound)
    assert signals.is_own_gate == (policy == SOLVER)


def test_the_window_ends_at_the_latest_snapshot_that_is_old_enough() -> None:
    window = GateWindow()
    for at, idle_slot_s in ((0.0, 0.0), (60.0, 600.0), (120.0, 660.0), (180.0, 840.0)):
        window.add(at, totals(at, idle_slot_s=idle_slot_s, groups=5.0))
    signals = window.signals({SOLVER: 2}, step_s=20.0)
    assert signals is not None
    assert (signals.idle_slots, signals.group_s) == (3.0, 0.0)


@pytest.mark.parametrize(("gap_s", "closed_s", "groups"), [(90.0, 90.0, 4.0), (91.0, 0.0, 0.0), (0.0, 0.0, 0.0)])
def test_time_between_reports_that_are_far_apart_is_not_counted(gap_s: float, closed_s: float, groups: float) -> None:
    tracker = GateTracker()
    for at, admitted in ((1000.0, 6), (1000.0 + gap_s, 9)):
        flow = replace(make.flow_report(), open=5, admitted=admitted, dropped={"stale": admitted // 9})
        tracker.observe(replace(make.report(make.stream_report(issue_headroom=0), flows=(flow,)), at=at))
    sums = tracker.totals({})
    assert sums.closed_s.get(SOLVER, 0.0) == closed_s
    assert (sums.open_group_s, sums.groups) == (5 * closed_s, groups)


@pytest.mark.parametrize(("headroom", "closed_s"), [(-1, 30.0), (0, 30.0), (1, 0.0)])
def test_a_gate_is_closed_without_headroom(headroom: int, closed_s: float) -> None:
    tracker = GateTracker()
    for at in (1000.0, 1030.0):
        tracker.observe(replace(make.report(make.stream_report(issue_headroom=headroom)), at=at))
    assert tracker.totals({}).closed_s == {SOLVER: closed_s}
