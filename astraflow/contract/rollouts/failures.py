"""Failures of rollouts: data in an episode, and the exception that the code of an episode raises."""

from dataclasses import dataclass
from enum import Enum

from astraflow.contract.errors import AstraFlowError


class Boundary(Enum):
    """Component in which a rollout failed."""

    ENGINE = "engine"
    ENVIRONMENT = "environment"
    WORKFLOW = "workflow"
    REWARD = "reward"

    @property
    def is_retried(self) -> bool:
        """Returns whether dataflow issues the task again: a defect of the workflow would repeat, but an engine, an
        environment or a judge may work on another node."""
        return self is not Boundary.WORKFLOW

    @property
    def is_infrastructure(self) -> bool:
        """Returns whether consecutive failures speak against the node, which then stops leasing tasks."""
        return self in (Boundary.ENGINE, Boundary.ENVIRONMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Reason for which an episode has no result: data, not an exception."""

    boundary: Boundary
    """Component that failed."""
    message: str
    """Cause, as a sentence."""

    @property
    def is_retried(self) -> bool:
        """Returns whether dataflow issues the task again."""
        return self.boundary.is_retried


class RolloutFailed(AstraFlowError):
    """An episode cannot continue, and the failed boundary is known. The runner records a failed episode."""

    def __init__(self, message: str, *, boundary: Boundary, code: str) -> None:
        super().__init__(message, code=code)
        self.boundary = boundary
