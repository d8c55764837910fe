"""The life of a node, as the sizer and the simulator see it: every event is answered in every phase."""

from enum import Enum, IntEnum


class Phase(IntEnum):
    """Where a node is.

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


class Happening(Enum):
    """What happens to a node."""

    ADVANCED = "advanced"
    """The next stage of its start is done."""
    CAME_UP = "came_up"
    """It takes tasks, whatever stages were seen before."""
    TO_DRAIN = "to_drain"
    """Asked to leave, or told by the market that it will be taken."""
    ENDED = "ended"
    """It failed, was cancelled, was lost or has drained."""


LAST_PENDING = Phase.WARMING

_NEXT = {
    Phase.REQUESTED: Phase.PROVISIONING,
    Phase.PROVISIONING: Phase.BOOTING,
    Phase.BOOTING: Phase.WARMING,
    Phase.WARMING: Phase.READY,
}


def following(phase: Phase, happening: Happening) -> Phase:
    """The phase after something happened. What makes no sense in a phase (a late message) changes nothing.

    >>> following(Phase.BOOTING, Happening.TO_DRAIN).name, following(Phase.READY, Happening.TO_DRAIN).name
    ('GONE', 'DRAINING')
    >>> following(Phase.DRAINING, Happening.CAME_UP).name
    'DRAINING'
    """
    is_pending = phase <= LAST_PENDING
    match happening:
        case Happening.ADVANCED:
            return _NEXT.get(phase, phase)
        case Happening.CAME_UP:
            return Phase.READY if is_pending else phase
        case Happening.TO_DRAIN:
            if is_pending:
                return Phase.GONE  # it holds no work that could be finished
            return Phase.DRAINING if phase is Phase.READY else phase
        case Happening.ENDED:
            return Phase.GONE
