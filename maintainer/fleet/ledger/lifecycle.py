"""Life cycle of an instance: the next state for every state and event. Pure and total.

    INTENDED ─► PENDING ─► RUNNING ─► READY ─► DRAINING ─► RETIRING ─► GONE
        │          │          └─────────┴─────────┘            ▲
        └──────────┴───────── nothing to drain ────────────────┘      unexpected event ─► SUSPECT

A combination without an entry in the table makes the instance SUSPECT: it still costs money and is checked again. An
instance that stays SUSPECT for `times.suspect_timeout_s` is drained.
"""

from enum import Enum

from astraflow.contract.fleet.instances import InstanceState as State


class InstanceEvent(Enum):
    """Event of an instance: an observation or a command."""

    ACCEPTED = "accepted"
    """The provider accepted the launch."""
    PENDING = "pending"
    RUNNING = "running"
    PREEMPTING = "preempting"
    """The provider preempts or terminates the instance."""
    GONE = "gone"
    """The provider reports that the instance has ended."""
    MISSING = "missing"
    """The instance was missing in two consecutive lists."""
    NODE_READY = "node ready"
    NODE_LEFT = "node left"
    DRAIN = "drain"
    """Command to drain the node and then terminate the instance."""
    RETIRE = "retire"
    """Command to terminate a failed instance."""
    STOP = "stop"
    """Command to terminate the instance because the service stops."""
    ADOPTED = "adopted"
    """The provider lists the instance again, and its node works, although it was recorded as gone."""
    RETIRED = "retired"
    """The provider confirmed that the instance no longer exists."""


STARTING_STATES = (State.INTENDED, State.PENDING, State.RUNNING)
COUNTED_STATES = (*STARTING_STATES, State.READY, State.SUSPECT)
"""States that count towards a pool's size."""
TERMINATING_STATES = (State.DRAINING, State.RETIRING)
LIVE_STATES = (*COUNTED_STATES, *TERMINATING_STATES)


def next_state(state: State, event: InstanceEvent) -> State:
    """Returns the next state. GONE is final, unless the instance is adopted because its node works.

    >>> next_state(State.PENDING, InstanceEvent.RUNNING)
    <InstanceState.RUNNING: 'running'>
    >>> next_state(State.READY, InstanceEvent.PENDING)
    <InstanceState.SUSPECT: 'suspect'>
    """
    if state is State.GONE and event is InstanceEvent.ADOPTED:
        return State.READY
    if state is State.GONE or event in (InstanceEvent.GONE, InstanceEvent.MISSING, InstanceEvent.RETIRED):
        return State.GONE
    if state is State.RETIRING:
        return State.RETIRING
    return _TABLE[event].get(state, State.SUSPECT)


_TABLE: dict[InstanceEvent, dict[State, State]] = {
    InstanceEvent.ACCEPTED: {
        State.INTENDED: State.PENDING,
        **{state: state for state in LIVE_STATES if state is not State.INTENDED},
    },
    InstanceEvent.PENDING: {
        State.INTENDED: State.PENDING,
        State.PENDING: State.PENDING,
        State.DRAINING: State.DRAINING,
    },
    InstanceEvent.RUNNING: {
        State.INTENDED: State.RUNNING,
        State.PENDING: State.RUNNING,
        State.RUNNING: State.RUNNING,
        State.READY: State.READY,
        State.DRAINING: State.DRAINING,
        State.SUSPECT: State.RUNNING,
    },
    InstanceEvent.PREEMPTING: {
        State.INTENDED: State.RETIRING,
        State.PENDING: State.RETIRING,
        State.RUNNING: State.DRAINING,
        State.READY: State.DRAINING,
        State.DRAINING: State.DRAINING,
        State.SUSPECT: State.DRAINING,
    },
    InstanceEvent.NODE_READY: {
        State.INTENDED: State.INTENDED,  # the launch is repeated, and returns the handle
        State.PENDING: State.READY,
        State.RUNNING: State.READY,
        State.READY: State.READY,
        State.DRAINING: State.DRAINING,
        State.SUSPECT: State.READY,
    },
    InstanceEvent.NODE_LEFT: {
        State.INTENDED: State.INTENDED,
        State.PENDING: State.PENDING,
        State.RUNNING: State.RUNNING,
        State.READY: State.RETIRING,
        State.DRAINING: State.RETIRING,
        State.SUSPECT: State.RETIRING,
    },
    InstanceEvent.DRAIN: {
        State.INTENDED: State.RETIRING,
        State.PENDING: State.RETIRING,
        State.RUNNING: State.DRAINING,
        State.READY: State.DRAINING,
        State.DRAINING: State.DRAINING,
        State.SUSPECT: State.DRAINING,
    },
    InstanceEvent.ADOPTED: {**{state: state for state in LIVE_STATES}, State.SUSPECT: State.READY},
    InstanceEvent.RETIRE: dict.fromkeys(LIVE_STATES, State.RETIRING),
    InstanceEvent.STOP: dict.fromkeys(LIVE_STATES, State.RETIRING),
}
