"""A trainer that waits for its staleness bound, not for nodes: the measurement, and the rule's decision."""

from dataclasses import replace
from typing import Any

import pytest

from astraflow.contract.fleet.recommendations import Reason
from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.report import Report
from astraflow.scaling.measurement.gates import is_gated, staleness_needed
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
    assert advice.sentence == (
        "gpu: stay at 23 nodes, because the trainer of solver waits 20% of the time while 40 of 160 slots are idle "
        "at the staleness gate: more nodes would hardly help, max_staleness 4 instead of 2 would (a group takes 200 s)."
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
    assert "verifier" in advice.sentence
    assert "staleness_needed" not in advice.inputs


@pytest.mark.parametrize("more", [{"wait_share": 0.05}, {"idle_slots": 8.0}, {"closed_share": 0.05}, {"slots": 0.0}])
def test_a_fed_trainer_full_slots_or_an_open_gate_is_not_gated(more: dict[str, float]) -> None:
    assert is_gated(gate(), wait_high=0.08)
    assert not is_gated(gate(**more), wait_high=0.08)


@pytest.mark.parametrize(("group_s", "step_s", "enough"), [(30, 120, 2), (120, 120, 2), (121, 120, 3), (347, 120, 4)])
def test_the_needed_bound_grows_with_the_group_time_in_steps(group_s: float, step_s: float, enough: int) -> None:
    assert staleness_needed(group_s=group_s, step_s=step_s) == enough


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
