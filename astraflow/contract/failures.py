"""Failures of rollouts, as data."""

from dataclasses import dataclass
from enum import Enum


class Boundary(Enum):
    """Component in which a rollout failed."""

    ENGINE = "engine"
    ENVIRONMENT = "environment"
    WORKFLOW = "workflow"
    REWARD = "reward"

    @property
    def is_infrastructure(self) -> bool:
        """Returns whether a retry on another node may help. A workflow or reward defect would repeat."""
        return self in (Boundary.ENGINE, Boundary.ENVIRONMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Reason for which an episode has no result: data, not an exception."""

    boundary: Boundary
    message: str
