"""The life of an instance: every state, everything that can be seen of it, and what follows. Pure and total.

    INTENDED ─► PENDING ─► RUNNING ─► READY ─► DRAINING ─► RETIRING ─► GONE
        │          │          └─────────┴─────────┘            ▲
        └──────────┴───────── nothing to drain ────────────────┘      what does not fit ─► SUSPECT

What has no line in the table is no crash and no guess: the instance is SUSPECT, costs on, and is looked at again; what
stays so for `times.suspect_s` is drained.
"""

from enum import Enum

from astraflow.contract.fleet import InstanceState as State


class Sight(Enum):
    """Something that happened to an instance, or was seen or ordered."""

    TAKEN = "taken"
    """The provider answered the launch."""
    PENDING = "pending"
    RUNNING = "running"
    GOING = "going"
    """The provider takes it away."""
    GONE = "gone"
    """The provider says that it has ended."""
    MISSING = "missing"
    """It was not in two lists that it should be in."""
    NODE_READY = "node ready"
    NODE_LEFT = "node left"
    DRAIN = "drain"
    """The order to go in peace."""
    RETIRE = "retire"
    """The order to go: nothing can come of it."""
    STOP = "stop"
    """The order to go with the service: no fault of its own."""
    RETIRED = "retired"
    """The provider answered the order: nothing is left."""


STARTING = (State.INTENDED, State.PENDING, State.RUNNING)
COUNTED = (*STARTING, State.READY, State.SUSPECT)
"""What a pool's size consists of: there, or on its way."""
LEAVING = (State.DRAINING, State.RETIRING)
ALIVE = (*COUNTED, *LEAVING)


def after(state: State, sight: Sight) -> State:
    """The state that follows. GONE stays GONE: whatever appears under its id later is an orphan.

    >>> after(State.PENDING, Sight.RUNNING)
    <InstanceState.RUNNING: 'running'>
    >>> after(State.READY, Sight.PENDING)
    <InstanceState.SUSPECT: 'suspect'>
    """
    if state is State.GONE or sight in (Sight.GONE, Sight.MISSING, Sight.RETIRED):
        return State.GONE
    if state is State.RETIRING:
        return State.RETIRING
    return _TABLE[sight].get(state, State.SUSPECT)


_TABLE: dict[Sight, dict[State, State]] = {
    Sight.TAKEN: {State.INTENDED: State.PENDING, **{state: state for state in ALIVE if state is not State.INTENDED}},
    Sight.PENDING: {
        State.INTENDED: State.PENDING,
        State.PENDING: State.PENDING,
        State.DRAINING: State.DRAINING,
    },
    Sight.RUNNING: {
        State.INTENDED: State.RUNNING,
        State.PENDING: State.RUNNING,
        State.RUNNING: State.RUNNING,
        State.READY: State.READY,
        State.DRAINING: State.DRAINING,
        State.SUSPECT: State.RUNNING,
    },
    Sight.GOING: {
        State.INTENDED: State.RETIRING,
        State.PENDING: State.RETIRING,
        State.RUNNING: State.DRAINING,
        State.READY: State.DRAINING,
        State.DRAINING: State.DRAINING,
        State.SUSPECT: State.DRAINING,
    },
    Sight.NODE_READY: {
        State.INTENDED: State.INTENDED,  # the launch is asked for again, and answers with the handle
        State.PENDING: State.READY,
        State.RUNNING: State.READY,
        State.READY: State.READY,
        State.DRAINING: State.DRAINING,
        State.SUSPECT: State.READY,
    },
    Sight.NODE_LEFT: {
        State.INTENDED: State.INTENDED,
        State.PENDING: State.PENDING,
        State.RUNNING: State.RUNNING,
        State.READY: State.RETIRING,
        State.DRAINING: State.RETIRING,
        State.SUSPECT: State.RETIRING,
    },
    Sight.DRAIN: {
        State.INTENDED: State.RETIRING,
        State.PENDING: State.RETIRING,
        State.RUNNING: State.DRAINING,
        State.READY: State.DRAINING,
        State.DRAINING: State.DRAINING,
        State.SUSPECT: State.DRAINING,
    },
    Sight.RETIRE: dict.fromkeys(ALIVE, State.RETIRING),
    Sight.STOP: dict.fromkeys(ALIVE, State.RETIRING),
}
