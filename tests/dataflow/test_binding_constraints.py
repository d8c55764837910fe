"""Reports name the constraint that keeps a trainer without a batch within 15 seconds."""

from dataclasses import replace
from typing import Any

import pytest

from astraflow.contract.ids import FlowId, PolicyId, Version
from astraflow.contract.nodes import EvaluationMode
from astraflow.contract.reports.evaluations import EvaluationState
from astraflow.contract.reports.report import Completion, FlowReport, NodeReport, NodeState, Pace, Report
from astraflow.dataflow.reporting.binding_constraints import HELD_S, START_S, ConstraintMonitor, FlowRole
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


def constraint_text(watch: ConstraintMonitor, **state: Any) -> str:
    """Returns the problem after this state has held for 15 seconds; its counts grow meanwhile."""
    problems: tuple[str, ...] = ()
    for second in range(WITHIN_S + 1):
        now = {name: value(second) if callable(value) else value for name, value in state.items()}
        problems = watch.problems(at(second, **now))
    assert len(problems) <= 1
    return problems[0] if problems else ""


CAUSES: dict[str, tuple[dict[str, Any], str]] = {
    "a trainer that has stopped": ({"is_waiting": False, "buffered": 4}, "pulls no batch"),
    "a paused flow": ({"counts": flow(is_paused=True)}, "'train' are paused"),
    "no node": ({"nodes": ()}, "no node is in the run"),
    "nodes that have left": ({"nodes": (node(state=NodeState.GONE),)}, "no node is in the run"),
    "engines that do not start": ({"nodes": (node("no GPU", state=NodeState.JOINING),)}, "load their engine"),
    "an engine that fails": (
        {"counts": lambda second: flow(episodes={"retried": 2 * second}), "nodes": (node("out of memory"),)},
        "out of memory; see /trajectories?outcome=failed",
    ),
    "a reward that fails": (
        {"counts": lambda second: flow(episodes={"failed_reward": second}), "nodes": (node("no judge"),)},
        "`failed_reward`): no judge",
    ),
    "a filter that drops everything": (
        {
            "counts": lambda second: flow(episodes={"accepted": 20 * second}, dropped={"informative": 5 * second}),
            "reward_produced": 0.0,
        },
        "`informative`); the mean reward of the latest rollouts is 0; see /trajectories?outcome=informative",
    ),
    "groups with failed members": (
        {
            "counts": lambda second: flow(
                episodes={"accepted": 20 * second, "failed_reward": 5 * second}, dropped={"failed": 5 * second}
            ),
            "nodes": (node("no judge"),),
        },
        ": no judge; see /trajectories?outcome=failed",
    ),
    "weights that do not arrive": (
        {"counts": flow(tasks_leased=0), "nodes": (node("no route", versions={SOLVER: Version(0)}),)},
        "3 or more versions behind its trainer, more than max_staleness = 2 allows: no route",
    ),
    "a node that keeps its tasks": (
        {"nodes": (node(leased=768, oldest_lease_s=2000.0, results=0),)},
        "holds 768 tasks, the oldest for 2000 s, and has returned none",
    ),
    "a node that keeps tasks for longer than groups take": (
        {
            "nodes": (node(leased=32, oldest_lease_s=100.0, results=9),),
            "pace": Pace(limit=40.0, outstanding=40.0, group_s=20.0, step_s=1.0),
        },
        "and has returned 9",
    ),
    "nodes that lease nothing": (
        {"counts": flow(tasks_leased=0), "nodes": (node("paused after 5 failures"),)},
        "lease no task: paused after 5 failures",
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_is_named_within_15_seconds(cause: str) -> None:
    state, text = CAUSES[cause]
    assert text in constraint_text(monitor(), **state)


def test_a_trainer_that_has_not_connected_is_named() -> None:
    assert "has not connected" in constraint_text(monitor(is_attached=False), is_waiting=False)


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
    assert "waits for the trainer of 'verifier'" in constraint_text(
        watch, counts=flow(open=0, tasks_leased=0), others=(other,)
    )


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
    assert constraint_text(monitor(), **NORMAL[name]) == ""


def test_the_text_stays_the_same_while_the_cause_holds_and_goes_when_groups_arrive() -> None:
    watch = monitor()
    texts = set[str]()
    for second in range(60):
        counts = flow(episodes={"accepted": 9 * second}, dropped={"informative": 9 * second})
        texts.update(watch.problems(at(second, counts=counts)))
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
    assert "run the evaluation 'held-out' (60 of 80 samples)" in problems[0]


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ((), "no node that serves its policies is ready"),
        ((node(state=NodeState.JOINING),), "no node that serves its policies is ready"),
        ((with_mode(EvaluationMode.NONE),), "nodes.evaluates = true"),
        ((with_mode(EvaluationMode.SERVED_VERSION), with_mode(EvaluationMode.NONE)), "needs version 10 of 'solver'"),
        ((with_mode(EvaluationMode.RESERVED, "evaluation: MemoryError: full"),), "MemoryError: full"),
    ],
)
def test_a_round_that_no_node_can_run_says_why(nodes: tuple[NodeReport, ...], text: str) -> None:
    round_ = make.round_report(state=EvaluationState.RUNNING)
    watch = EvaluationMonitor({round_.flow: [SOLVER]})
    for second in range(WITHIN_S + 1):
        problems = watch.problems(replace(at(second, nodes=nodes), evaluations=(round_,)))
    assert [text in problem for problem in problems] == [True]
    reserved = replace(round_, reserved_nodes=(node().id,))
    assert watch.problems(replace(at(WITHIN_S + 1, nodes=nodes), evaluations=(reserved,))) == ()


def test_a_round_with_tasks_to_lease_has_no_problem() -> None:
    round_ = make.round_report(state=EvaluationState.RUNNING)
    watch = EvaluationMonitor({round_.flow: [SOLVER]})
    for second in range(WITHIN_S + 1):
        assert watch.problems(replace(at(second), evaluations=(round_,))) == ()
