"""Life cycle of a node for the sizer and the simulator: every event has a result in every phase."""

from enum import Enum, IntEnum


class Phase(IntEnum):
    """Phase of a node.

    REQUESTED ─► PROVISIONING ─► BOOTING ─► WARMING ─► READY ─► DRAINING ─► GONE
        └─────────────┴──────────────┴─────────┴─────────┴─────────┴──────────▲
    """

    REQUESTED = 0
    PROVISIONING = 1
    BOOTING = 2
    WARMING = 3
    READY = 4
    DRAINING = 5
    GONE = 6


class PhaseEvent(Enum):
    """Event of a node."""

    ADVANCED = "advanced"
    """The next stage of the start is complete."""
    BECAME_READY = "became_ready"
    """The node takes tasks; earlier stages do not matter."""
    DRAIN_REQUESTED = "drain_requested"
    """The node was asked to leave, or got a preemption notice."""
    ENDED = "ended"
    """The node failed, was cancelled, was lost or has drained."""


LAST_PENDING = Phase.WARMING

_NEXT = {
    Phase.REQUESTED: Phase.PROVISIONING,
    Phase.PROVISIONING: Phase.BOOTING,
    Phase.BOOTING: Phase.WARMING,
    Phase.WARMING: Phase.READY,
}


def next_phase(phase: Phase, event: PhaseEvent) -> Phase:
    """Returns the phase after an event. An event that does not fit the phase (a late message) changes nothing.

    >>> [next_phase(phase, PhaseEvent.DRAIN_REQUESTED).name for phase in (Phase.BOOTING, Phase.READY)]
    ['GONE', 'DRAINING']
    >>> next_phase(Phase.DRAINING, PhaseEvent.BECAME_READY).name
    'DRAINING'
    """
    is_pending = phase <= LAST_PENDING
    match event:
        case PhaseEvent.ADVANCED:
            return _NEXT.get(phase, phase)
        case PhaseEvent.BECAME_READY:
            return Phase.READY if is_pending else phase
        case PhaseEvent.DRAIN_REQUESTED:
            if is_pending:
                return Phase.GONE  # it has no work to finish
            return Phase.DRAINING if phase is Phase.READY else phase
        case PhaseEvent.ENDED:
            return Phase.GONE
