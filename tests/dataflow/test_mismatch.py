"""A divergence above the trainer's bound is a problem of the run, with its cause from trainer and nodes."""

from dataclasses import replace

from astraflow.contract.batching import BatchingFacts
from astraflow.contract.ids import PolicyId
from astraflow.contract.records import render
from astraflow.contract.reports.diagnosis import LimitingCause, diagnose
from astraflow.contract.reports.report import NodeReport, NodeState, Report
from astraflow.dataflow.reporting.health import mismatch_problems
from tests import make

ABOVE = {"mismatch_k3": 0.05, "mismatch_of_bound": 2.5, "mismatch_mass": 1.0, "mismatch_one_sided": 0.0}


def node(name: str, probe: float, precision: str, state: NodeState = NodeState.READY) -> NodeReport:
    plain = make.node_report(name, state=state, gauges={"logprob_mismatch_max": probe})
    return replace(plain, facts=replace(plain.facts, precision=precision))


def report(metrics: dict[str, float], *nodes: NodeReport) -> Report:
    stream = make.stream_report(steps=3)
    batching = BatchingFacts(batching="packed", largest_difference=0.0, precision="float32")
    stream = replace(stream, training=replace(stream.training, metrics=metrics), batching=batching)
    return replace(make.report(stream), nodes=nodes)


def test_the_worst_node_that_serves_says_whether_weights_or_samples_differ() -> None:
    exact, coarse = node("a.1", 1e-6, "float32"), node("b.1", 1.3, "weights of few bits")
    gone = node("c.1", 9.0, "16 bits", NodeState.LOST)

    (problem,) = mismatch_problems(report(ABOVE, exact, coarse, gone))
    assert (problem.cause, problem.subject) == ("mismatch_coarse", "solver")
    assert problem.values["probe"] == 1.3
    assert problem.values["engines"] == "float32, weights of few bits"
    assert "trainer in float32" in render(problem)
    (problem,) = mismatch_problems(report(ABOVE, exact, gone))
    assert problem.cause == "mismatch_sampled"


def test_a_mixture_whose_experts_are_not_replayed_is_told_from_what_its_trainer_states() -> None:
    coarse = node("b.1", 1.3, "weights of few bits")
    replayed = report(ABOVE | {"changed_experts": 0.02}, coarse)

    causes = [
        problem.cause
        for state in (report(ABOVE, coarse), replayed)
        for problem in mismatch_problems(state, mixtures=[PolicyId("solver")])
    ]
    assert causes == ["mismatch_routed", "mismatch_coarse"]


def test_below_the_bound_and_without_a_measurement_nothing_is_wrong() -> None:
    coarse = node("b.1", 1.3, "weights of few bits")

    assert mismatch_problems(report(ABOVE | {"mismatch_of_bound": 0.9}, coarse)) == ()
    assert mismatch_problems(report({}, coarse)) == ()


def test_the_diagnosis_of_the_run_names_the_cause() -> None:
    state = report(ABOVE, node("b.1", 1.3, "weights of few bits"))
    state = replace(state, problems=mismatch_problems(state))

    diagnosis = diagnose(state, state.streams[0].policy)
    assert diagnosis.cause is LimitingCause.MISMATCH_COARSE
    assert "1.3 nats on the probe" in diagnosis.explanation
