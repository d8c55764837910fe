"""Which groups go first."""

from typing import Literal, TypeAlias

from astraflow.dataflow.serving.buffer import Buffered

Order: TypeAlias = Literal["deadline", "fifo", "freshest"]
"""`deadline`: oldest version that is still admissible; `fifo`: oldest arrival; `freshest`: newest version."""


def place(candidate: Buffered, order: Order) -> tuple[int, int]:
    """Sorts candidates in that order, ties by arrival.

    Earliest deadline first is the optimal order for jobs with deadlines on one server (Liu and Layland, 1973); here the
    deadline is the last version a group may still be trained at.
    """
    match order:
        case "deadline":
            return (candidate.deadline, candidate.arrival)
        case "fifo":
            return (0, candidate.arrival)
        case "freshest":
            return (-candidate.born, candidate.arrival)
