"""Views of agents' sessions: the list of model calls, their bodies, and the table of live sessions."""

from dataclasses import replace
from typing import Any

import pytest

from astraflow.contract.reports.report import NodeReport, SampledTrajectory
from astraflow.contract.rollouts.agent_calls import MAX_BODY_CHARACTERS, AgentCall, CallOutcome
from tests.fakes.agent_session import agent_trajectories, live_session
from tests.fakes.synthetic_run import SyntheticRun
from web.components.live_sessions import IDLE_S, is_idle, live_sessions, runs_agents
from web.trajectories.agent_calls import CALLS_SHOWN, CallList, call_bodies, call_list, session_calls

(SAMPLE, *_) = SyntheticRun().samples(30)


def members() -> list[SampledTrajectory]:
    """Returns the sampled trajectories of a session; their ordinals are 1, 2 and 3."""
    return [
        replace(
            SAMPLE, ordinal=index + 1, index=index, role=trajectory.role, calls=trajectory.calls, spans=trajectory.spans
        )
        for index, trajectory in enumerate(agent_trajectories())
    ]


def listed(shown: int = 1, **options: Any) -> CallList:
    calls = call_list(members(), shown, **options)
    assert calls is not None
    return calls


def call(**changes: Any) -> AgentCall:
    return replace(members()[0].calls[0], **changes)


def test_calls_of_all_branches_are_in_order_of_time_and_lead_to_their_turns() -> None:
    rows = listed(shown=2).rows
    assert [row.number for row in rows] == list(range(1, 9))
    assert [row.turn_ordinal for row in rows] == [1, 1, 1, 3, 1, 2, 1, 1]
    assert [row.turn_id for row in rows] == ["turn-1", "", "turn-2", "turn-1", "turn-2", "turn-1", "turn-3", ""]
    assert [row.turn for row in rows][3:6] == ["turn 1 of searcher", "turn 2 of agent (1)", "turn 1"]
    assert [row.is_own for row in rows] == [False] * 5 + [True, False, False]


def test_a_turn_has_its_calls_with_their_retries() -> None:
    assert listed(shown=1).of_turns == {1: (1,), 2: (3, 5), 3: (7,)}
    assert listed(shown=2).of_turns == {1: (6,)}


def test_calls_are_filtered_by_outcome_and_keep_their_numbers() -> None:
    refused = listed(outcome=CallOutcome.REFUSED)
    assert [row.number for row in refused.rows] == [8]
    assert (refused.total, refused.hidden) == (8, 0)
    assert [(outcome, count) for outcome, _, count in refused.outcomes] == [
        (CallOutcome.ANSWERED, 5),
        (CallOutcome.REPLAYED, 1),
        (CallOutcome.REFUSED, 1),
        (CallOutcome.ABORTED, 1),
    ]


def test_only_the_open_call_has_bodies_even_beyond_the_listed_ones() -> None:
    (first, *_) = members()
    many = [replace(first, calls=tuple(call(began_s=float(index)) for index in range(CALLS_SHOWN + 20)))]
    calls = call_list(many, 1, number=CALLS_SHOWN + 7)
    assert calls is not None
    assert [row.number for row in calls.rows if row.bodies] == [CALLS_SHOWN + 7]
    assert (len(calls.rows), calls.hidden, calls.outcomes) == (CALLS_SHOWN + 1, 19, ())


def test_a_session_without_recorded_calls_has_no_list() -> None:
    assert call_list([replace(member, calls=()) for member in members()], 1) is None
    assert session_calls([]) == ()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"a": [1, "\\u00fc"]}', '{\n  "a": [\n    1,\n    "\u00fc"\n  ]\n}'),
        ("too many turns\x1b", "too many turns\u241b"),
        ("[" * 5000, "[" * 5000),
        ('{"a": "cut of', '{"a": "cut of'),
    ],
)
def test_complete_json_is_broken_into_lines_and_other_texts_stay(text: str, shown: str) -> None:
    (body,) = call_bodies(call(request=text, reply=""))
    assert body.text == shown
    assert not body.is_cut


def test_a_body_of_the_largest_length_is_marked_as_cut() -> None:
    request, reply = call_bodies(call(request="x" * MAX_BODY_CHARACTERS))
    assert (request.is_cut, reply.is_cut) == (True, False)


def nodes() -> list[NodeReport]:
    report = SyntheticRun().report(10).nodes[0]
    old = live_session("train:1/0", age_s=400.0, idle_s=IDLE_S, waiting_calls=0)
    busy = live_session("train:2/0", age_s=500.0, idle_s=IDLE_S, waiting_calls=1)
    return [
        replace(report, sessions=(old,), gauges={"agent_sessions": 40.0}),
        replace(report, sessions=(busy,), gauges={"agent_sessions": 1.0}),
        replace(report, sessions=(), gauges={}),
    ]


def test_live_sessions_are_sorted_by_age_and_idle_ones_are_marked() -> None:
    view = live_sessions(nodes())
    assert [(row.task, is_idle(row)) for _, row in view.rows] == [("train:2/0", False), ("train:1/0", True)]
    assert view.idle == 1
    assert (view.total, view.hidden) == (41, 39)
    assert not live_sessions(nodes()[2:]).rows
    assert [runs_agents(node) for node in nodes()] == [True, True, False]
