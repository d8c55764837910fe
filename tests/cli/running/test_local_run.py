"""Decisions of a run on this machine: when a complete run ends."""

from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.cli.running.local_run import (
    JOINED_NODES_WAIT_S,
    announced_events,
    total_failure_error,
    waits_for_joined_nodes,
)
from astraflow.cli.running.supervisor import Program
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import problem_record
from astraflow.contract.reports.report import Completion, Event, NodeState
from tests import make

COMPLETED_AT = 100.0
OWN = [Program(name="node-1", argv=(), log=Path("node-1.log"))]


@pytest.mark.parametrize(
    ("name", "state", "after_s", "waits"),
    [
        ("elsewhere", NodeState.READY, 1.0, True),
        ("elsewhere", NodeState.DRAINING, 1.0, True),
        ("elsewhere", NodeState.GONE, 1.0, False),
        ("elsewhere", NodeState.READY, JOINED_NODES_WAIT_S, False),
        ("node-1", NodeState.READY, 1.0, False),  # the supervisor stops it
    ],
)
def test_a_complete_run_waits_until_nodes_from_elsewhere_have_left(
    name: str, state: NodeState, after_s: float, waits: bool
) -> None:
    node = make.node_report(f"{name}.1", state=state)
    completion = Completion(reason="done", has_learned=True, at=COMPLETED_AT, ends_run=True)
    report = replace(make.report(), at=COMPLETED_AT + after_s, nodes=(node,), completion=completion)
    assert waits_for_joined_nodes(report, own=OWN) is waits


def test_the_error_of_a_run_in_which_every_episode_fails_has_the_cause_once() -> None:
    report = make.report(nodes=(replace(make.node_report(), errors=("reward: ValueError: no number",)),))
    assert total_failure_error(report).code == "run.every_episode_fails"
    assert "reward: ValueError: no number" in str(total_failure_error(report))
    with_problem = replace(report, problems=(problem_record("journal", "", error="reward: ValueError: no number"),))
    assert "ValueError" not in str(total_failure_error(with_problem))


def test_each_suspension_and_change_of_load_is_printed_once_and_none_of_an_earlier_session() -> None:
    suspended = RecordKind.RUN_SUSPENDED
    kinds = (suspended, RecordKind.NODE_JOINED, suspended, RecordKind.LOAD_CHANGED)
    events = [Event(ordinal=at, at=at, kind=kind, subject="run") for at, kind in enumerate(kinds)]
    report = replace(make.report(), events=tuple(events))
    assert [event.ordinal for event in announced_events(report, after=0)] == [2, 3]
    assert announced_events(report, after=3) == []
