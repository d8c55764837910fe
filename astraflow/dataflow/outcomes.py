"""Outcomes of pushed episodes. Every pushed episode has exactly one outcome and is counted under it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from astraflow.contract.ids import GroupId, PolicyId
from astraflow.contract.rollouts.failures import Boundary
from astraflow.contract.rollouts.tasks import Group
from astraflow.contract.rollouts.timelines import EPISODE, PUSH, Hop
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow.admission.admitter import Admission

ACCEPTED = "accepted"
"""The result counts. It is the first of its task, from any node and attempt, even after the lease expired."""

RETRIED = "retried"
"""The infrastructure failed, and another attempt follows."""

SUPERSEDED = "superseded"
"""The infrastructure failed in a past attempt: the next attempt has begun, or another node holds the task.

If it counted, the task would lose one of its attempts.
"""

DUPLICATE = "duplicate"
"""Another result of the task counted before, and other members of its group are still open."""

LATE = "late"
"""Another result of the task counted before, and its group is finished; or its evaluation was stopped.

For a handed-back task: its node does not hold it any more, so the current holder continues undisturbed.
"""

UNKNOWN = "unknown"
"""This run never issued such a task."""

NOT_COUNTED = frozenset({RETRIED, SUPERSEDED, DUPLICATE, LATE, UNKNOWN})
"""Outcomes of episodes that are not results of their tasks."""

HANDED_BACK = "handed_back"
"""Outcome of a task, not of an episode: another node continues it."""


def failed_outcome(boundary: Boundary) -> str:
    """Returns the outcome of a failure that counts; the member is masked.

    >>> failed_outcome(Boundary.REWARD)
    'failed_reward'
    """
    return f"failed_{boundary.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteGroup:
    """Group whose members all have a result, and the decision about it."""

    group: Group
    admission: Admission
    surplus_policies: frozenset[PolicyId]
    """Policies whose share is dropped, even if admitted."""
    issued_at: float | None
    """Time of the issue; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResult:
    """Effects of pushed episodes of one group."""

    group: GroupId
    outcomes: Sequence[str]
    """Outcome of each episode, in order."""
    counted_episodes: Sequence[Episode] = ()
    """Episodes that count."""
    complete_group: CompleteGroup | None = None
    """The group, if the episodes completed it and no group reward is missing; else None."""


def with_push(episode: Episode, *, at: float) -> Episode:
    """Returns the episode with the hop of its push, which lasts from the end of the episode on the node to `at`.

    Clocks of two machines may differ; a push that seems to end before it began lasts 0 s.
    """
    began_at = max((hop.ended_at for hop in episode.hops if hop.name == EPISODE), default=at)
    push = Hop(name=PUSH, began_at=began_at, duration_s=max(0.0, at - began_at))
    return replace(episode, hops=(*episode.hops, push))
