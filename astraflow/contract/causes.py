"""What made a node or its machine go."""

from enum import Enum


class Cause(Enum):
    """The first stays, but for one: what was only missed at first, and was taken away, was taken."""

    ORDERED = "ordered"
    """Somebody asked: a person, the rule or a program."""
    TAKEN = "taken"
    """Its provider takes it away, as spot machines are, and says so before."""
    LOST = "lost"
    """It worked, and ended or was not heard any more, without anybody having asked."""
    FAILED = "failed"
    """It never worked: refused, stuck, too late, or ended before."""
    EXPIRED = "expired"
    """It is as old as machines may get."""
    UNCLEAR = "unclear"
    """What was seen of it has not fit for too long."""


LOSSES = (Cause.TAKEN, Cause.LOST)
"""Of what worked, and went without having been asked."""
