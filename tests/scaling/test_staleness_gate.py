"""A trainer that waits for its staleness bound, not for nodes: the measurement, and the rule's decision."""

from dataclasses import replace
from typing import Any

import pytest

from astraflow.contract.fleet.recommendations import Reason
from astraflow.contract.ids import PolicyId
from astraflow.contract.records import render
from astraflow.contract.reports.report import Report
from astraflow.scaling.measurement.gates import GateTotals, GateTracker, GateWindow, is_gated, staleness_needed
from astraflow.scaling.measurement.observation import Observer
from astraflow.scaling.measurement.signals import GateSignals, NodeTable, Signals
from astraflow.scaling.options import Spec
from astraflow.scaling.rule.sizer import decide
from astraflow.scaling.rule.state import SizerResult, SizerState
from astraflow.scaling.simulation.scenarios import find_scenario
from astraflow.scaling.simulation.simulator import simulate
from tests import make
from tests.scaling.make import nodes, signals, spec, stream

SOLVER, VERIFIER = PolicyId("solver"), PolicyId("verifier")


def gate(**more: Any) -> GateSignals:
    """Returns a gate, mostly closed, of a trainer that waits a fifth of the time while 40 of 160 slots are empty."""
    values: dict[str, Any] = {
        "policy": SOLVER,
        "waiting_policy": SOLVER,
        "closed_share": 0.6,
        "wait_share": 0.2,
        "idle_slots": 40.0,
        "slots": 160.0,
        "group_s": 200.0,
        "max_staleness": 2,
    }
    return GateSignals(**values | more)


def decided(table: NodeTable, ticks: int, state: SizerState | None = None, **more: Any) -> SizerResult:
    values: dict[str, Any] = {"streams": (stream(wait_share_300_s=0.2, wait_share_600_s=0.2),), "gate": gate()}
    inputs = signals(table, **values | more)
    verdict = SizerResult(recommendations=(), state=state or SizerState())
    for tick in range(ticks):
        verdict = decide(replace(inputs, at=inputs.at + 30.0 * tick), spec(), verdict.state)
    return verdict


def test_a_wait_at_the_gate_recommends_a_larger_bound_instead_of_nodes() -> None:
    (advice,) = decided(nodes(23), 40).recommendations
    assert (advice.target, advice.reasons[0]) == (23, Reason.GATED)
    assert advice.inputs["trim"] == 1.0
    assert advice.inputs["staleness_needed"] == 4
    assert render(advice.change) == (
        "stay at 23 nodes, because the trainer of solver waits 20% of the time while 40 of 160 slots are idle, "
        "because rollouts may not run further ahead: more nodes would hardly help, max_staleness 4 instead of 2 would "
        "(a group takes 200 s)"
    )


def test_no_growth_while_nodes_wait_at_the_gate() -> None:
    held = decided(nodes(15), 6)
    assert (held.recommendations[0].target, held.recommendations[0].reasons) == (15, (Reason.GATED,))
    busy = decided(nodes(15), 2, held.state, at=30_300.0, gate=gate(idle_slots=3.0))
    assert (busy.recommendations[0].target, busy.recommendations[0].reasons) == (22, (Reason.BELOW_BAND,))


def test_a_trim_learned_at_the_gate_decays_gradually() -> None:
    state = decided(nodes(23), 1).state
    later = decided(nodes(30), 40, replace(state, trim=1.3)).state
    assert 1.2 < later.trim < 1.3


def test_the_gate_of_another_policy_is_reported_without_a_proposed_bound() -> None:
    (advice,) = decided(nodes(23), 11, gate=gate(policy=VERIFIER)).recommendations
    assert advice.change.values["gate_policy"] == "verifier"
    assert "staleness_needed" not in advice.inputs


@pytest.mark.parametrize(
    ("more", "is_at_gate"),
    [
        ({}, True),
        ({"idle_slots": 16.0}, True),
        ({"idle_slots": 15.9}, False),
        ({"slots": 0.0}, False),
        ({"closed_share": 0.1}, True),
        ({"closed_share": 0.09}, False),
        ({"wait_share": 0.08}, False),
    ],
    ids=str,
)
def test_a_gate_is_the_cause_of_a_wait_from_a_tenth_of_time_and_slots_on(
    more: dict[str, float], is_at_gate: bool
) -> None:
    assert is_gated(gate(**more), wait_high=0.08) == is_at_gate
    assert not is_gated(None, wait_high=0.08)


@pytest.mark.parametrize(("group_s", "step_s", "enough"), [(30, 120, 2), (120, 120, 2), (121, 120, 3), (347, 120, 4)])
def test_the_needed_bound_grows_with_the_group_time_in_steps(group_s: float, step_s: float, enough: int) -> None:
    assert staleness_needed(group_s=group_s, step_s=step_s) == enough


@pytest.mark.long
def test_the_recommended_bound_ends_the_wait_of_a_gated_trainer() -> None:
    bounds: set[int] = set()

    def noted(inputs: Signals, sizer_spec: Spec, state: SizerState) -> SizerResult:
        verdict = decide(inputs, sizer_spec, state)
        (advice,) = verdict.recommendations
        bounds.update(int(value) for name, value in advice.inputs.items() if name == "staleness_needed")
        return verdict

    tight = simulate(find_scenario("gated"), rule=noted)
    assert tight.wait > 0.3
    assert max(moment.target for moment in tight.ticks) <= 23
    enough = find_scenario("gated", {"trainer": {"max_staleness": max(bounds)}})
    assert simulate(enough).wait < 0.01


def course(second: int, **changes: Any) -> Report:
    """Steps of 20 s with 5 s of waiting; ten open groups, one result per second; half of 8 slots is used."""
    steps = second // 20
    counters = {"busy_s": second / 2, "blocked_s": second / 2}
    trained = make.stream_report(
        steps=steps, wait_s=5.0 * steps, compute_s=15.0 * steps, publish_s=0.0, issue_headroom=0 if second % 4 else 5
    )
    flow = replace(make.flow_report(), open=10, admitted=second, dropped={})
    values: dict[str, Any] = {"nodes": (make.node_report("node-1.1", counters=counters),), "at": 1000.0 + second}
    return replace(make.report(trained, flows=(flow,)), **values | changes)


def test_gate_slots_and_group_times_are_measured_over_the_latest_steps() -> None:
    observer = Observer(Spec())
    for second in range(241):
        observer.observe(course(second))
        if second % 30 == 0:
            gate_signals = observer.signals().gate
    assert gate_signals is not None
    assert (gate_signals.policy, gate_signals.waiting_policy, gate_signals.is_own_gate, gate_signals.max_staleness) == (
        SOLVER,
        SOLVER,
        True,
        2,
    )
    assert gate_signals.closed_share == pytest.approx(0.75, abs=0.02)
    assert gate_signals.wait_share == pytest.approx(0.25, abs=0.03)
    assert (gate_signals.idle_slots, gate_signals.slots) == pytest.approx((4.0, 8.0))
    assert gate_signals.group_s == pytest.approx(10.0)


def test_without_two_recent_ticks_nothing_is_measured() -> None:
    observer = Observer(Spec())
    observer.observe(course(100))
    assert observer.signals().gate is None
    observer.observe(course(1000))  # the time in between is unknown
    gate_signals = observer.signals().gate
    assert gate_signals is not None
    assert (gate_signals.closed_share, gate_signals.group_s) == (0.0, 0.0)


def test_slots_of_joining_and_leaving_nodes_are_counted_proportionally() -> None:
    observer = Observer(Spec())
    observer.observe(course(0))
    observer.signals()
    other = make.node_report("node-2.2", counters={"busy_s": 500.0, "blocked_s": 900.0})
    observer.observe(course(60, nodes=(*course(60).nodes, other)))
    observer.observe(course(120))
    gate_signals = observer.signals().gate
    assert gate_signals is not None
    assert gate_signals.slots == pytest.approx(8.0)


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


def measured_gate(*times_s: float, step_s: float = 10.0, **changes: Any) -> GateSignals | None:
    window = GateWindow()
    for at in times_s:
        window.add(at, totals(at, **changes if at else {}))
    return window.signals({SOLVER: 2, VERIFIER: 4}, step_s=step_s)


def test_a_gate_is_measured_over_three_steps_or_a_minute() -> None:
    for step_s in (10.0, 20.0, 40.0):
        signals = measured_gate(0.0, 100.0, 160.0, 220.0, step_s=step_s)
        assert signals is not None
        assert (signals.policy, signals.waiting_policy, signals.max_staleness) == (SOLVER, SOLVER, 2)
        assert (signals.closed_share, signals.wait_share) == (0.5, 0.5)
        assert (signals.idle_slots, signals.slots, signals.group_s) == (3.0, 8.0, 40.0)


def test_without_a_minute_a_step_or_a_policy_no_gate_is_measured() -> None:
    assert measured_gate(0.0, 59.0) is None
    assert measured_gate(0.0, 60.0) is not None
    assert measured_gate(0.0, 60.0, step_s=0.0) is None
    assert GateWindow().signals({SOLVER: 2}, step_s=10.0) is None
    window = GateWindow()
    window.add(0.0, totals(0.0))
    window.add(60.0, totals(60.0))
    assert window.signals({}, step_s=10.0) is None


@pytest.mark.parametrize(("closed_s", "policy", "bound"), [(10.0, SOLVER, 2), (9.0, VERIFIER, 4)])
def test_the_gate_of_the_other_policy_counts_where_the_own_one_is_open(
    closed_s: float, policy: PolicyId, bound: int
) -> None:
    signals = measured_gate(0.0, 100.0, closed_s={SOLVER: closed_s, VERIFIER: 50.0})
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
