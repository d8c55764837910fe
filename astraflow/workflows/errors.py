"""How an episode ends when it cannot go on."""

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.failures import Boundary


class RolloutBroke(AstraFlowError):
    """An episode cannot go on, and where it broke is known. The runner makes a failed episode of it."""

    def __init__(self, boundary: Boundary, message: str) -> None:
        super().__init__(message)
        self.boundary = boundary
