"""Every pair of state and event has a defined next state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.fleet.instances import InstanceState as State
from maintainer.fleet.ledger.lifecycle import COUNTED_STATES, LIVE_STATES, TERMINATING_STATES, InstanceEvent, next_state


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", list(InstanceEvent))
def test_every_pair_of_state_and_event_is_defined(state: State, event: InstanceEvent) -> None:
    assert next_state(state, event) in State


@given(st.lists(st.sampled_from([event for event in InstanceEvent if event is not InstanceEvent.ADOPTED])))
def test_only_an_adoption_leaves_the_state_gone(events: list[InstanceEvent]) -> None:
    state = State.GONE
    assert next_state(state, InstanceEvent.ADOPTED) is State.READY
    for event in events:
        state = next_state(state, event)
    assert state is State.GONE


@pytest.mark.long
@given(st.sampled_from(State), st.lists(st.sampled_from(InstanceEvent)))
def test_a_retiring_instance_is_never_counted_again(state: State, events: list[InstanceEvent]) -> None:
    state = next_state(state, InstanceEvent.RETIRE)
    for event in events:
        is_adopted = state is State.GONE and event is InstanceEvent.ADOPTED
        state = next_state(state, event)
        if is_adopted:
            return
        assert state not in COUNTED_STATES


@pytest.mark.long
@given(st.sampled_from(State), st.lists(st.sampled_from(InstanceEvent)))
def test_a_repeated_event_changes_nothing(state: State, events: list[InstanceEvent]) -> None:
    for event in events:
        state = next_state(state, event)
        assert next_state(state, event) in (next_state(next_state(state, event), event), State.SUSPECT)


def test_an_instance_becomes_ready_and_is_retired() -> None:
    state = State.INTENDED
    events = [
        InstanceEvent.ACCEPTED,
        InstanceEvent.PENDING,
        InstanceEvent.RUNNING,
        InstanceEvent.NODE_READY,
        InstanceEvent.DRAIN,
        InstanceEvent.NODE_LEFT,
        InstanceEvent.RETIRED,
    ]
    states = []
    for event in events:
        state = next_state(state, event)
        states.append(state)
    assert states == [
        State.PENDING,
        State.PENDING,
        State.RUNNING,
        State.READY,
        State.DRAINING,
        State.RETIRING,
        State.GONE,
    ]


def test_each_state_is_counted_leaving_or_gone() -> None:
    assert {*COUNTED_STATES, *TERMINATING_STATES, State.GONE} == set(State)
    assert set(LIVE_STATES) == set(State) - {State.GONE}


@pytest.mark.long
@given(st.lists(st.sampled_from(InstanceEvent)))
def test_every_suspect_can_drain_and_every_instance_can_end(events: list[InstanceEvent]) -> None:
    for start in State:
        state = start
        for event in events:
            state = next_state(state, event)
        if state is State.SUSPECT:
            assert next_state(state, InstanceEvent.DRAIN) is State.DRAINING
        assert next_state(state, InstanceEvent.RETIRE) in (State.RETIRING, State.GONE)
        assert next_state(next_state(state, InstanceEvent.RETIRE), InstanceEvent.RETIRED) is State.GONE


SUSPECTS = {
    (State.INTENDED, InstanceEvent.PREEMPTING): State.RETIRING,
    (State.READY, InstanceEvent.PENDING): State.SUSPECT,
    (State.RUNNING, InstanceEvent.PENDING): State.SUSPECT,
    (State.SUSPECT, InstanceEvent.PENDING): State.SUSPECT,
    (State.SUSPECT, InstanceEvent.ACCEPTED): State.SUSPECT,
}
"""Next state of unexpected pairs of state and event; every other pair has a line in the table."""


def test_the_transitions_to_suspect_are_those_of_the_table() -> None:
    pairs = {(state, event) for state in State for event in InstanceEvent if next_state(state, event) is State.SUSPECT}
    assert pairs == {pair for pair, state in SUSPECTS.items() if state is State.SUSPECT}
    assert all(next_state(*pair) is state for pair, state in SUSPECTS.items())
