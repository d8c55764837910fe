"""Error that ends an episode as failed."""

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.failures import Boundary


class RolloutFailed(AstraFlowError):
    """An episode cannot continue, and the failed boundary is known. The runner records a failed episode."""

    def __init__(self, message: str, *, boundary: Boundary, code: str) -> None:
        super().__init__(message, code=code)
        self.boundary = boundary
