"""Reports name the constraint that keeps a trainer without a batch within 15 seconds."""

from dataclasses import replace
from typing import Any

import pytest

from astraflow.contract.ids import FlowId, PolicyId, Version
from astraflow.contract.nodes import EvaluationMode
from astraflow.contract.records import Record, render
from astraflow.contract.reports.evaluations import EvaluationState
from astraflow.contract.reports.report import Completion, FlowReport, NodeReport, NodeState, Pace, Report
from astraflow.contract.values import Value
from astraflow.dataflow.reporting.binding_constraints import HELD_S, START_S, Constraint, ConstraintMonitor, FlowRole
from astraflow.dataflow.reporting.evaluation_constraints import EvaluationMonitor
from tests import make

SOLVER, VERIFIER = PolicyId("solver"), PolicyId("verifier")
TRAIN = FlowId("train")
WITHIN_S = 15


def monitor(*, is_attached: bool = True, policies: tuple[PolicyId, ...] = (SOLVER,)) -> ConstraintMonitor:
    role = FlowRole(policies=policies, served_policies=policies, needs_nodes=True)
    return ConstraintMonitor({TRAIN: role}, is_attached=lambda policy: is_attached)


def flow(**changes: Any) -> FlowReport:
    values: dict[str, Any] = {"episodes": {}, "dropped": {}, "open": 8, "tasks_leased": 8}
    return replace(make.flow_report(), **values | changes)


def node(error: str = "", **changes: Any) -> NodeReport:
    plain = make.node_report(state=changes.pop("state", NodeState.READY))
    return replace(plain, errors=(error,) if error else (), **changes)


def with_mode(mode: EvaluationMode, error: str = "") -> NodeReport:
    plain = node(error)
    return replace(plain, facts=replace(plain.facts, evaluation_mode=mode))


def at(
    second: float,
    *,
    nodes: tuple[NodeReport, ...] | None = None,
    counts: FlowReport | None = None,
    others: Any = (),
    **stream: Any,
) -> Report:
    waiting = make.stream_report(**{"is_waiting": True, "steps": 3, "admitted": 15} | stream)
    plain = make.report(waiting, *others, flows=(counts or flow(),))
    return replace(plain, nodes=(node(),) if nodes is None else nodes, uptime_s=second)


def problem_of(watch: ConstraintMonitor, **state: Any) -> Record | None:
    """Returns the problem after this state has held for 15 seconds; its counts grow meanwhile."""
    problems: tuple[Record, ...] = ()
    for second in range(WITHIN_S + 1):
        now = {name: value(second) if callable(value) else value for name, value in state.items()}
        problems = watch.problems(at(second, **now))
    assert len(problems) <= 1
    return problems[0] if problems else None


CAUSES: dict[str, tuple[dict[str, Any], Constraint, dict[str, Value]]] = {
    "a trainer that has stopped": ({"is_waiting": False, "buffered": 4}, Constraint.NO_PULL, {"buffered": 4}),
    "a paused flow": ({"counts": flow(is_paused=True)}, Constraint.FLOWS_PAUSED, {"flows": "'train'"}),
    "no node": ({"nodes": ()}, Constraint.NO_NODE, {}),
    "nodes that have left": ({"nodes": (node(state=NodeState.GONE),)}, Constraint.NO_NODE, {}),
    "engines that do not start": (
        {"nodes": (node("no GPU", state=NodeState.JOINING),)},
        Constraint.NODES_STARTING,
        {"nodes": 1, "error": "no GPU"},
    ),
    "an engine that fails": (
        {"counts": lambda second: flow(episodes={"retried": 2 * second}), "nodes": (node("out of memory"),)},
        Constraint.EPISODES_FAIL,
        {"step": 3, "error": "out of memory", "outcome": "failed"},
    ),
    "a reward that fails": (
        {"counts": lambda second: flow(episodes={"failed_reward": second}), "nodes": (node("no judge"),)},
        Constraint.EPISODES_FAIL,
        {"error": "no judge", "outcome": "failed"},
    ),
    "a filter that drops everything": (
        {
            "counts": lambda second: flow(episodes={"accepted": 20 * second}, dropped={"informative": 5 * second}),
            "reward_produced": 0.0,
        },
        Constraint.FILTERED,
        {"reward": 0.0, "error": "", "outcome": "informative"},
    ),
    "groups with failed members": (
        {
            "counts": lambda second: flow(
                episodes={"accepted": 20 * second, "failed_reward": 5 * second}, dropped={"failed": 5 * second}
            ),
            "nodes": (node("no judge"),),
        },
        Constraint.FILTERED,
        {"error": "no judge", "outcome": "failed"},
    ),
    "weights that do not arrive": (
        {"counts": flow(tasks_leased=0), "nodes": (node("no route", versions={SOLVER: Version(0)}),)},
        Constraint.OLD_WEIGHTS,
        {"lag": 3, "max_staleness": 2, "error": "no route"},
    ),
    "a node that keeps its tasks": (
        {"nodes": (node(leased=768, oldest_lease_s=2000.0, results=0),)},
        Constraint.TASKS_KEPT,
        {"tasks": 768, "held_s": 2000.0, "results": 0},
    ),
    "a node that keeps tasks for longer than groups take": (
        {
            "nodes": (node(leased=32, oldest_lease_s=100.0, results=9),),
            "pace": Pace(limit=40.0, outstanding=40.0, group_s=20.0, step_s=1.0),
        },
        Constraint.TASKS_KEPT,
        {"results": 9},
    ),
    "nodes that lease nothing": (
        {"counts": flow(tasks_leased=0), "nodes": (node("paused after 5 failures"),)},
        Constraint.NO_LEASES,
        {"nodes": 1, "error": "paused after 5 failures"},
    ),
}


@pytest.mark.parametrize("case", CAUSES)
def test_each_cause_is_named_within_15_seconds(case: str) -> None:
    state, cause, values = CAUSES[case]
    problem = problem_of(monitor(), **state)
    assert problem is not None
    assert problem.cause == cause.value
    assert problem.values.items() >= {"policy": SOLVER, **values}.items()
    assert "?" not in render(problem)


def test_a_trainer_that_has_not_connected_is_named() -> None:
    problem = problem_of(monitor(is_attached=False), is_waiting=False)
    assert problem is not None and problem.cause == "no_trainer"


@pytest.mark.parametrize(
    ("is_attached", "state"),
    [(False, {"is_waiting": False}), (True, {"nodes": (node(state=NodeState.JOINING),)})],
    ids=["a trainer prepares its model", "engines load"],
)
def test_a_start_is_no_problem_until_it_takes_long(is_attached: bool, state: dict[str, Any]) -> None:
    watch = monitor(is_attached=is_attached)
    problems = [watch.problems(at(second, steps=0, **state)) for second in range(60)]
    assert [bool(sentences) for sentences in problems] == [second >= START_S for second in range(60)]


def test_a_flow_that_waits_for_the_trainer_of_another_policy_is_named() -> None:
    other = make.stream_report("verifier", issue_headroom=0, in_batch=4)
    watch = monitor(policies=(SOLVER, VERIFIER))
    problem = problem_of(watch, counts=flow(open=0, tasks_leased=0), others=(other,))
    assert problem is not None
    assert (problem.cause, problem.values["other"]) == ("other_policy", "verifier")


NORMAL: dict[str, dict[str, Any]] = {
    "rollouts that take long": {},
    "a step that takes long": {"is_waiting": False, "in_batch": 4},
    "some failures": {"counts": lambda second: flow(episodes={"accepted": second, "failed_reward": 9 * second})},
    "few dropped groups": {"counts": flow(episodes={"accepted": 4}, dropped={"informative": 7})},
    "dropped groups between admitted ones": {
        "counts": lambda second: flow(dropped={"informative": 9 * second}),
        "admitted": lambda second: second,
    },
}


@pytest.mark.parametrize("name", NORMAL)
def test_normal_waits_are_no_problem(name: str) -> None:
    assert problem_of(monitor(), **NORMAL[name]) is None


def test_the_problem_stays_the_same_while_the_cause_holds_and_goes_when_groups_arrive() -> None:
    watch = monitor()
    texts = set[str]()
    for second in range(60):
        counts = flow(episodes={"accepted": 9 * second}, dropped={"informative": 9 * second})
        texts.update(map(render, watch.problems(at(second, counts=counts))))
    assert len(texts) == 1
    for second in range(60, 60 + int(HELD_S) + 2):
        problems = watch.problems(at(second, admitted=second))
    assert problems == ()


def test_a_complete_run_has_no_problem() -> None:
    watch = monitor()
    completion = Completion(reason="reward reached", has_learned=True, at=0.0, ends_run=True)
    for second in range(30):
        assert watch.problems(replace(at(second, nodes=()), completion=completion)) == ()


def test_a_round_on_all_nodes_is_named_as_the_cause() -> None:
    round_ = replace(make.round_report(state=EvaluationState.RUNNING), reserved_nodes=(node().id,))
    watch = monitor()
    for second in range(WITHIN_S + 1):
        problems = watch.problems(replace(at(second, counts=flow(tasks_leased=0)), evaluations=(round_,)))
    assert problems[0].cause == "evaluating"
    assert problems[0].values.items() >= {"evaluation": "held-out", "done": 60, "total": 80}.items()


@pytest.mark.parametrize(
    ("nodes", "cause", "values"),
    [
        ((), "evaluation_unserved", {}),
        ((node(state=NodeState.JOINING),), "evaluation_unserved", {}),
        ((with_mode(EvaluationMode.NONE),), "evaluation_untaken", {"nodes": 1}),
        (
            (with_mode(EvaluationMode.SERVED_VERSION), with_mode(EvaluationMode.NONE)),
            "evaluation_versions",
            {"versions": "version 10 of 'solver'"},
        ),
        (
            (with_mode(EvaluationMode.RESERVED, "evaluation: MemoryError: full"),),
            "evaluation_error",
            {"error": "evaluation: MemoryError: full"},
        ),
    ],
)
def test_a_round_that_no_node_can_run_says_why(
    nodes: tuple[NodeReport, ...], cause: str, values: dict[str, Value]
) -> None:
    round_ = make.round_report(state=EvaluationState.RUNNING)
    watch = EvaluationMonitor({round_.flow: [SOLVER]})
    for second in range(WITHIN_S + 1):
        problems = watch.problems(replace(at(second, nodes=nodes), evaluations=(round_,)))
    assert [(problem.cause, problem.values) for problem in problems] == [(cause, {"evaluation": "held-out", **values})]
    reserved = replace(round_, reserved_nodes=(node().id,))
    assert watch.problems(replace(at(WITHIN_S + 1, nodes=nodes), evaluations=(reserved,))) == ()


def test_a_round_with_tasks_to_lease_has_no_problem() -> None:
    round_ = make.round_report(state=EvaluationState.RUNNING)
    watch = EvaluationMonitor({round_.flow: [SOLVER]})
    for second in range(WITHIN_S + 1):
        assert watch.problems(replace(at(second), evaluations=(round_,))) == ()
