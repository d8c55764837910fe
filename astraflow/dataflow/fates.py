"""What becomes of what a node hands in. Every pushed episode has exactly one of these fates, and is counted so."""

from dataclasses import dataclass

from astraflow.contract.failures import Boundary
from astraflow.contract.groups import Group
from astraflow.contract.ids import GroupId, PolicyId
from astraflow.contract.trajectories import Episode
from astraflow.dataflow.admitting.admitter import Admission

ACCEPTED = "accepted"
"""The result counts. It is the first one of its task, from whatever node and try: also from one whose lease ran out."""

RETRIED = "retried"
"""The infrastructure failed, and another node tries again."""

SUPERSEDED = "superseded"
"""The infrastructure failed in a try that is over: the next one has begun, or another node holds the task by now.

To count it would take a try away from the one that goes on.
"""

DUPLICATE = "duplicate"
"""Another result of the task counted before, and others of its group are still out."""

LATE = "late"
"""Another result of the task counted before, and its whole group has gone on its way; or its evaluation was stopped.

Of a task that is handed back instead: its node does not hold it any more, so whoever does goes on undisturbed.
"""

UNKNOWN = "unknown"
"""No such task was ever issued in this run."""

HANDED_BACK = "handed_back"
"""Not of an episode: a task that another node goes on with."""


def failed_at(boundary: Boundary) -> str:
    """The fate of a failure that counts: the member is masked.

    >>> failed_at(Boundary.REWARD)
    'failed_reward'
    """
    return f"failed_{boundary.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a pushed episode led to."""

    fate: str
    group: GroupId | None = None
    """The group it belongs to, when it counts."""
    counted: Episode | None = None
    """The episode, when it counts."""
    finished: Group | None = None
    """Its group, when it was the last member."""
    admission: Admission | None = None
    """What is to become of that group."""
    spare_for: frozenset[PolicyId] = frozenset()
    """The policies whose share of it is dropped, whatever admission says."""
