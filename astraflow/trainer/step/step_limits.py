"""Ends training that goes on without a result: engine and trainer disagree, or no step changes the weights."""

from collections.abc import Mapping

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.contract.batches import Batch
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.logs import get_logger
from astraflow.trainer.step.node_mismatch import NodeMismatch
from astraflow.trainer.step.runner import StepResult

log = get_logger()

MAX_SKIPPED_STEPS = 10
"""Consecutive steps without any update after which training ends. One alone may be an outlier."""


class StepLimits:
    """Counts the consecutive steps that count as failed. A restart resets the counts."""

    def __init__(self, algorithm: AlgorithmConfig) -> None:
        self._mismatch = NodeMismatch(algorithm)
        self._skipped_steps = 0

    @property
    def excluded_nodes(self) -> frozenset[str]:
        """Names of the nodes whose rows are dropped, because their logprobs differ from the trainer's."""
        return self._mismatch.excluded

    def check(self, batch: Batch, result: StepResult, metrics: Mapping[str, float]) -> None:
        """Checks the result of a step. Raises: InvalidInput after too many failed steps."""
        self._mismatch.observe(batch, result.row_mismatch, metrics.get("mismatch_k3"))
        updates = (*result.updates, *result.critic_updates)
        if any(update.is_skipped for update in updates):
            log.error("step_skipped", batch=batch.id, why="loss or gradient is not a finite number")
        is_skipped = bool(updates) and all(update.is_skipped for update in updates)
        self._skipped_steps = self._skipped_steps + 1 if is_skipped else 0
        if self._skipped_steps >= MAX_SKIPPED_STEPS:
            raise InvalidInput(
                f"cannot go on training: the last {self._skipped_steps} steps changed no weight, because loss or "
                "gradient was not a finite number; check own rewards, advantages and losses, or lower learning_rate",
                code="trainer.not_finite",
            )
