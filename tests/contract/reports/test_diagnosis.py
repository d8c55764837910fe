"""The diagnosis: one limiting stage for each state of a run, and texts that agree with its figures."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.fleet.pools import FleetStatus, KillScope
from astraflow.contract.fleet.recommendations import LimitInEffect, Mode, PoolRecommendation, Reason
from astraflow.contract.ids import NodeId, PolicyId, PoolId, Version
from astraflow.contract.record_kinds import Severity
from astraflow.contract.records import Record, problem_record
from astraflow.contract.reports.diagnosis import Diagnosis, LimitingCause, Stage, diagnose, fed_below
from astraflow.contract.reports.report import Completion, NodeReport, NodeState, PoolReport, Report
from tests import make

SOLVER = PolicyId("solver")
NODE_RATE = 0.97


def advice(*, demand: float | None = 6.7, target: int = 10, **changes: Any) -> PoolRecommendation:
    measured = {} if demand is None else {"demand_groups_per_s": demand, "node_groups_per_s": NODE_RATE}
    values: dict[str, Any] = {"mode": Mode.ON, "reasons": (Reason.INSIDE_BAND,), "present": target, "inputs": measured}
    return make.pool_advice(target=target, **(values | changes))


def state(
    *,
    ready: int = 10,
    joining: int = 0,
    lost: int = 0,
    recommendation: PoolRecommendation | None = None,
    problems: tuple[Record, ...] = (),
    gauges: dict[str, float] | None = None,
    **stream: Any,
) -> Report:
    """Returns a report of a run that trains, with `ready` nodes that serve the newest version."""
    trained = make.stream_report(steps=20, **({"wait_fraction": 0.01, "publish_s": 0.1} | stream))
    nodes = tuple(
        replace(make.node_report(f"n{number}.1", state=node_state, gauges=gauges), versions={SOLVER: trained.version})
        for number, node_state in enumerate(
            [NodeState.READY] * ready + [NodeState.JOINING] * joining + [NodeState.LOST] * lost
        )
    )
    report = make.report(trained)
    return replace(
        report,
        nodes=nodes,
        problems=problems,
        recommendations=(advice() if recommendation is None else recommendation,),
        pools=(
            PoolReport(
                id=PoolId("local"),
                ready=ready,
                joining=joining,
                draining=0,
                lost=lost,
                episodes_per_s=1.0,
                tokens_per_s=1.0,
            ),
        ),
    )


def behind(report: Report, nodes: int, versions: int) -> Report:
    """Returns a report in which the first nodes are versions behind."""
    lagging = [replace(node, versions={SOLVER: Version(20 - versions)}) for node in report.nodes[:nodes]]
    return replace(report, nodes=(*lagging, *report.nodes[nodes:]))


WAITING: dict[str, Any] = {"wait_fraction": 0.44, "is_waiting": True}
GATED = advice(target=10, reasons=(Reason.GATED,))
PAUSED = replace(make.flow_report(), is_paused=True)
DONE = Completion(reason="20 steps", has_learned=True, at=1.0, ends_run=True)

STATES: dict[str, tuple[Report, Stage, str, Severity]] = {
    "nothing limits": (state(), Stage.TRAINER, "fed", Severity.INFO),
    "a region is lost": (state(ready=3, lost=7), Stage.NODES, "nodes_missing", Severity.WARNING),
    "a region is lost and starts again": (
        state(ready=3, joining=7, **WAITING),
        Stage.NODES,
        "nodes_missing",
        Severity.WARNING,
    ),
    "the kill switch keeps nodes from starting": (
        state(ready=3, recommendation=advice(limited_by=(LimitInEffect.KILL_SWITCH,))),
        Stage.NODES,
        "nodes_held",
        Severity.CRITICAL,
    ),
    "the maximum is reached": (
        state(ready=5, recommendation=advice(target=5, limited_by=(LimitInEffect.MAX_NODES,)), **WAITING),
        Stage.NODES,
        "nodes_limited",
        Severity.WARNING,
    ),
    "a fixed number of nodes learns slowly": (
        state(ready=5, recommendation=advice(target=8, mode=Mode.ADVISE), **WAITING),
        Stage.NODES,
        "too_few_nodes",
        Severity.INFO,
    ),
    "nothing is measured": (
        state(recommendation=advice(demand=None), **WAITING),
        Stage.NODES,
        "rollouts_slow",
        Severity.INFO,
    ),
    "nodes have just recovered": (state(wait_fraction=0.3), Stage.BUFFER, "uneven", Severity.INFO),
    "slots are idle at the bound": (
        state(recommendation=GATED, wait_fraction=0.3),
        Stage.BUFFER,
        "staleness_bound",
        Severity.INFO,
    ),
    "no more may be issued": (
        state(issue_headroom=0, wait_fraction=0.3),
        Stage.BUFFER,
        "staleness_bound",
        Severity.INFO,
    ),
    "episodes wait for tools": (
        state(gauges={"engine_running": 0.1}, wait_fraction=0.3),
        Stage.VERIFIER,
        "outside_engines",
        Severity.INFO,
    ),
    "nodes cannot load weights": (behind(state(), 6, 3), Stage.STORE, "weights_behind", Severity.WARNING),
    "publishing is slow": (state(publish_s=3.0), Stage.STORE, "publishing", Severity.INFO),
    "no node": (state(ready=0), Stage.NODES, "no_node", Severity.CRITICAL),
    "nodes start": (state(ready=0, joining=2), Stage.NODES, "nodes_starting", Severity.INFO),
    "issuing is paused": (
        replace(state(), flows=(PAUSED,)),
        Stage.BUFFER,
        "flows_paused",
        Severity.WARNING,
    ),
    "the run is complete": (replace(state(ready=0), completion=DONE), Stage.NONE, "complete", Severity.INFO),
    "a trainer does not pull": (
        state(problems=(problem_record("no_pull", "solver", policy="solver", buffered=9),)),
        Stage.TRAINER,
        "no_pull",
        Severity.CRITICAL,
    ),
    "all episodes fail": (
        state(problems=(problem_record("episodes_fail", "solver", failed=9, step=2, outcomes="9 `failed_reward`"),)),
        Stage.VERIFIER,
        "episodes_fail",
        Severity.CRITICAL,
    ),
    "the problem of another policy": (
        state(problems=(problem_record("no_pull", "judge", policy="judge", buffered=9),)),
        Stage.TRAINER,
        "fed",
        Severity.INFO,
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_each_state_has_one_limiting_stage_with_a_cause(name: str) -> None:
    report, stage, code, severity = STATES[name]
    diagnosis = diagnose(report, SOLVER)

    assert (diagnosis.stage, diagnosis.cause.value, diagnosis.severity) == (stage, code, severity)
    assert diagnosis.headline
    assert "?" not in diagnosis.explanation, "every figure of the text is known"


def test_after_a_fault_the_sentence_names_nodes_and_both_rates() -> None:
    diagnosis = diagnose(STATES["a region is lost and starts again"][0], SOLVER)

    assert diagnosis.headline == "The trainer waits for rollouts"
    assert diagnosis.explanation == (
        "3 of 10 nodes are ready (7 starting): ready nodes can make 2.91 groups/s of the 6.70 that the trainer needs; "
        "the others are starting."
    )


def test_before_the_first_step_the_first_batch_is_counted() -> None:
    trained = make.stream_report(steps=0, buffered=3)
    report = replace(state(), streams=(trained,))
    assert diagnose(report, SOLVER).cause is LimitingCause.FIRST_BATCH
    report = replace(report, streams=(make.changed_stream(trained, in_batch=4),))
    assert diagnose(report, SOLVER).cause is LimitingCause.FIRST_STEP


STOPPED_FLEET = FleetStatus(
    cluster="c",
    at=0.0,
    pools=(),
    kill=KillScope.ALL,
    kill_reason="",
    usd_per_hour=0.0,
    usd_today=0.0,
    last_sweep_at=None,
    orphans=0,
)


def test_the_kill_switch_of_the_fleet_service_counts_at_once() -> None:
    report = state(ready=3)
    assert diagnose(report, SOLVER, STOPPED_FLEET).cause is LimitingCause.NODES_HELD
    assert "the kill switch" in diagnose(report, SOLVER, STOPPED_FLEET).remedy


def test_the_bound_of_a_fed_trainer_is_that_of_the_sizer() -> None:
    patient = state(recommendation=advice(inputs={"wait_high": 0.5}), wait_fraction=0.44)
    assert (fed_below(None), fed_below(patient)) == (0.08, 0.5)
    assert diagnose(patient, SOLVER).cause is LimitingCause.FED


@st.composite
def reports(draw: st.DrawFn) -> Report:
    """Reports of any mixture of nodes, waits, demands, limits and queues."""
    ready, joining, lost = (draw(st.integers(0, 12)) for _ in range(3))
    demand = draw(st.none() | st.floats(0.004, 40.0))
    mode = draw(st.sampled_from(Mode))
    limits = tuple(draw(st.sets(st.sampled_from(LimitInEffect), max_size=2)))
    reasons = (draw(st.sampled_from((Reason.INSIDE_BAND, Reason.GATED, Reason.BELOW_BAND))),)
    recommendation = advice(
        demand=demand, target=draw(st.integers(0, 12)), mode=mode, limited_by=limits, reasons=reasons
    )
    return state(
        ready=ready,
        joining=joining,
        lost=lost,
        recommendation=recommendation,
        wait_fraction=draw(st.floats(0.0, 1.0)),
        is_waiting=draw(st.booleans()),
        issue_headroom=draw(st.integers(0, 3)),
        buffered=draw(st.integers(0, 9)),
        publish_s=draw(st.floats(0.0, 9.0)),
    )


@given(reports())
def test_the_sentence_never_contradicts_its_figures(report: Report) -> None:
    diagnosis = diagnose(report, SOLVER)
    balance = diagnosis.balance
    is_short = diagnosis.cause in (
        LimitingCause.NODES_MISSING,
        LimitingCause.NODES_HELD,
        LimitingCause.NODES_LIMITED,
        LimitingCause.TOO_FEW_NODES,
    )

    if is_short:
        assert balance.ratio is not None
        assert balance.ratio < 1, "capacity is called short only where the printed ratio is below 1"
    if diagnosis.cause is LimitingCause.UNEVEN:
        assert balance.ratio is not None
        assert balance.ratio >= 1
    if diagnosis.cause is LimitingCause.FED:
        assert ("ready nodes can make" in diagnosis.explanation) == (balance.ratio is not None and balance.ratio >= 1)
        assert diagnosis.wait <= fed_below(report)
        assert not (balance.missing_nodes and balance.ratio is not None and balance.ratio < 1)
    assert (diagnosis.severity is Severity.CRITICAL) == _needs_a_person(diagnosis)
    assert "?" not in diagnosis.explanation


def _needs_a_person(diagnosis: Diagnosis) -> bool:
    return diagnosis.cause in (LimitingCause.NO_NODE, LimitingCause.NODES_HELD)


def test_a_node_that_is_gone_does_not_count() -> None:
    report = state(ready=2)
    node: NodeReport = replace(report.nodes[0], id=NodeId("x.1"), state=NodeState.GONE)
    assert diagnose(replace(report, nodes=(node, *report.nodes)), SOLVER).balance.ready_nodes == 2


def test_a_wait_that_goes_on_counts_before_its_step_has_ended() -> None:
    training = make.stream_report(steps=20, wait_s=0.0, compute_s=20.0, publish_s=0.0, wait_fraction=0.0).training
    assert training.current_wait == 0.0
    assert replace(training, waiting_s=1.0).current_wait == 0.0, "a batch that is pulled in advance"
    assert replace(training, waiting_s=11.0).current_wait == 0.5
    assert diagnose(state(publish_s=0.0, waiting_s=60.0), SOLVER).cause is LimitingCause.UNEVEN
