"""Rollouts that broke: data, not crashes."""

from dataclasses import dataclass
from enum import Enum


class Boundary(Enum):
    """Where a rollout broke."""

    ENGINE = "engine"
    ENVIRONMENT = "environment"
    WORKFLOW = "workflow"
    REWARD = "reward"

    @property
    def is_infrastructure(self) -> bool:
        """True when trying again elsewhere may help; a workflow or reward defect would only repeat."""
        return self in (Boundary.ENGINE, Boundary.ENVIRONMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an episode has no result: data, not a crash."""

    boundary: Boundary
    message: str
