"""Every state and everything that can be seen has a defined next state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.fleet import InstanceState as State
from maintainer.fleet.lifecycle import ALIVE, COUNTED, LEAVING, Sight, after


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("sight", list(Sight))
def test_every_pair_is_defined(state: State, sight: Sight) -> None:
    assert after(state, sight) in State


@given(st.lists(st.sampled_from(Sight)))
def test_gone_is_the_end(sights: list[Sight]) -> None:
    state = State.GONE
    for sight in sights:
        state = after(state, sight)
    assert state is State.GONE


@given(st.sampled_from(State), st.lists(st.sampled_from(Sight)))
def test_what_is_to_be_retired_is_never_counted_again(state: State, sights: list[Sight]) -> None:
    state = after(state, Sight.RETIRE)
    for sight in sights:
        state = after(state, sight)
        assert state not in COUNTED


@given(st.sampled_from(State), st.lists(st.sampled_from(Sight)))
def test_what_was_seen_last_twice_changes_nothing_more(state: State, sights: list[Sight]) -> None:
    for sight in sights:
        state = after(state, sight)
        assert after(state, sight) in (after(after(state, sight), sight), State.SUSPECT)


def test_the_usual_life() -> None:
    state = State.INTENDED
    seen = [Sight.TAKEN, Sight.PENDING, Sight.RUNNING, Sight.NODE_READY, Sight.DRAIN, Sight.NODE_LEFT, Sight.RETIRED]
    states = []
    for sight in seen:
        state = after(state, sight)
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


def test_an_instance_is_counted_or_leaving_or_gone() -> None:
    assert {*COUNTED, *LEAVING, State.GONE} == set(State)
    assert set(ALIVE) == set(State) - {State.GONE}


@given(st.lists(st.sampled_from(Sight)))
def test_every_suspect_can_go_in_peace_and_every_life_can_end(sights: list[Sight]) -> None:
    for start in State:
        state = start
        for sight in sights:
            state = after(state, sight)
        if state is State.SUSPECT:
            assert after(state, Sight.DRAIN) is State.DRAINING
        assert after(state, Sight.RETIRE) in (State.RETIRING, State.GONE)
        assert after(after(state, Sight.RETIRE), Sight.RETIRED) is State.GONE


SUSPECTS = {
    (State.INTENDED, Sight.GOING): State.RETIRING,
    (State.READY, Sight.PENDING): State.SUSPECT,
    (State.RUNNING, Sight.PENDING): State.SUSPECT,
    (State.SUSPECT, Sight.PENDING): State.SUSPECT,
    (State.SUSPECT, Sight.TAKEN): State.SUSPECT,
}
"""What does not fit, and what is near to it; every other pair has a line in the table."""


def test_what_becomes_suspect_is_written_down() -> None:
    found = {(state, sight) for state in State for sight in Sight if after(state, sight) is State.SUSPECT}
    assert found == {pair for pair, state in SUSPECTS.items() if state is State.SUSPECT}
    assert all(after(*pair) is state for pair, state in SUSPECTS.items())
