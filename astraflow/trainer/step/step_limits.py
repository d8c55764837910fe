"""Limits that end training without a result: engine and trainer disagree, no step changes the weights, or engines do
not record what the loss needs.

The mismatch is measured by node, so that the logprobs of one node neither stop nor spoil training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.algorithms.mismatch import check_mismatch
from astraflow.contract.batches import Batch, Rows
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import node_name
from astraflow.runtime.logs import get_logger
from astraflow.trainer.step.runner import StepResult

log = get_logger()

RECENT_STEPS = 100
"""Steps since its last row for which a node with matching logprobs shows that the trainer is right. Count."""

EXCLUDED_STEPS = 50
"""Steps for which the rows of a node are dropped after its logprobs differed. Count."""


@dataclass(slots=True)
class _Node:
    seen_at: int = 0
    """Step with its latest row."""
    is_matching: bool = False
    """True if the latest measurement was within the bound."""
    exceeded: int = 0
    """Consecutive measurements above the bound."""
    excluded_until: int = 0


class NodeMismatch:
    """Decides whether a divergence above `max_mismatch` is the fault of single nodes or of the run.

    While another node that still delivers rows matches the trainer, a node above the bound for `max_mismatch_steps`
    steps is excluded: its rows are dropped for a while. When no node matches, the trainer itself or all engines are
    wrong, and training stops as `check_mismatch` says. A restart forgets everything.
    """

    def __init__(self, algorithm: AlgorithmConfig) -> None:
        self._algorithm = algorithm
        self._nodes: dict[str, _Node] = {}
        self._steps = 0
        self._exceeded_steps = 0

    @property
    def excluded(self) -> frozenset[str]:
        """Names of the nodes whose rows are dropped now."""
        return frozenset(name for name, node in self._nodes.items() if self._steps < node.excluded_until)

    def observe(self, batch: Batch, row_mismatch: Sequence[Sequence[float]], metrics: Mapping[str, float]) -> None:
        """Notes a step. row_mismatch: measured tokens, and sums of k3, by row. metrics: of the step, without those of
        the mismatch if nothing was measured. Raises: InvalidInput when no node matches for too long."""
        self._steps += 1
        bound = self._algorithm.max_mismatch
        if bound is None:
            return
        means = self._means(batch, row_mismatch)
        for name, mean in means.items():
            node = self._nodes[name]
            if mean is not None:
                node.is_matching = mean <= bound
                node.exceeded = 0 if node.is_matching else node.exceeded + 1
        others_match = any(node.is_matching for node in self._nodes.values())
        exceeding = {name for name, mean in means.items() if mean is not None and not mean <= bound}
        if exceeding and others_match:
            self._exclude(exceeding)
            metrics = {}
        self._exceeded_steps = check_mismatch(self._exceeded_steps, metrics, self._algorithm)

    def _exclude(self, names: set[str]) -> None:
        for name in sorted(names):
            node = self._nodes[name]
            is_excluded = node.exceeded >= self._algorithm.max_mismatch_steps
            log.error("node_mismatch", node=name, steps=node.exceeded, is_excluded=is_excluded)
            if is_excluded:
                node.excluded_until = self._steps + EXCLUDED_STEPS

    def _means(self, batch: Batch, row_mismatch: Sequence[Sequence[float]]) -> dict[str, float | None]:
        """Returns the mean k3 of each node of the batch, None without a measured token; forgets nodes that are gone."""
        sums: dict[str, list[float]] = {}
        tokens, k3s = row_mismatch or ([0.0] * len(batch.rows), [0.0] * len(batch.rows))
        for node, count, k3 in zip(Rows.of(batch.rows).nodes, tokens, k3s, strict=True):
            total = sums.setdefault(node_name(node), [0.0, 0.0])
            total[0] += count
            total[1] += k3
        for name in sums:
            self._nodes.setdefault(name, _Node()).seen_at = self._steps
        recent = self._steps - RECENT_STEPS
        self._nodes = {name: node for name, node in self._nodes.items() if node.seen_at > recent}
        return {name: k3 / count if count else None for name, (count, k3) in sums.items()}


MAX_SKIPPED_STEPS = 10
"""Consecutive steps without any update after which training ends. One alone may be an outlier."""


MAX_UNRECORDED_STEPS = 30
"""Consecutive steps without a recorded head, although the loss needs it, after which training ends. Batches that were
recorded before a change of the loss are fewer: nodes that cannot record are refused when they join."""


class StepLimits:
    """Counts the consecutive steps that count as failed. A restart resets the counts."""

    def __init__(self, algorithm: AlgorithmConfig) -> None:
        self._mismatch = NodeMismatch(algorithm)
        self._skipped_steps = 0
        self._unrecorded_steps = 0

    @property
    def excluded_nodes(self) -> frozenset[str]:
        """Names of the nodes whose rows are dropped, because their logprobs differ from the trainer's."""
        return self._mismatch.excluded

    def check(self, batch: Batch, result: StepResult, metrics: Mapping[str, float]) -> None:
        """Checks the result of a step. Raises: InvalidInput after too many failed steps."""
        self._mismatch.observe(batch, result.row_mismatch, metrics)
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
        self._unrecorded_steps = self._unrecorded_steps + 1 if metrics.get("outside_head", 0.0) >= 1 else 0
        if self._unrecorded_steps >= MAX_UNRECORDED_STEPS:
            raise InvalidInput(
                f"cannot center scores: no row of the last {self._unrecorded_steps} steps has the most likely tokens "
                "of the engine; use nodes whose engines record them, or set centering = 0",
                code="algorithm.no_top_tokens",
            )
