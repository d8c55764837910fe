"""Orders of groups in a batch."""

from typing import Literal, TypeAlias

from astraflow.dataflow.serving.buffer import BufferedGroup

GroupOrder: TypeAlias = Literal["deadline", "fifo", "freshest"]
"""`deadline`: oldest admissible version first; `fifo`: oldest arrival first; `freshest`: newest version first."""


def sort_key(candidate: BufferedGroup, order: GroupOrder) -> tuple[int, int]:
    """Returns the sort key of a candidate in that order, ties by arrival.

    Earliest deadline first is the optimal order for jobs with deadlines on one server (Liu and Layland, 1973); here the
    deadline is the last version a group may still be trained at.
    """
    match order:
        case "deadline":
            return (candidate.deadline, candidate.arrival)
        case "fifo":
            return (0, candidate.arrival)
        case "freshest":
            return (-candidate.oldest_version, candidate.arrival)
