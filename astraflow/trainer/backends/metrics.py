"""What a step tells about itself."""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from astraflow.algorithms.losses.base import BatchFacts, LossPart
from astraflow.contract.batches import Batch
from astraflow.contract.trajectories import Trajectory
from astraflow.trainer.collate import MicroBatch


class StepMetrics:
    """Adds up over the micro-batches of one step. Means are over the tokens that count."""

    def __init__(self, batch: Batch, facts: BatchFacts, *, device: torch.device) -> None:
        self._trajectories = [row.trajectory for row in batch.rows]
        self._version = int(batch.version)
        self._facts = facts
        self._loss = 0.0
        self._sums: dict[str, float] = defaultdict(float)
        self._gap: float | None = None
        own = [_is_written_with(trajectory, self._version) for trajectory in self._trajectories]
        self._is_own = torch.tensor(own, device=device)

    @torch.no_grad()
    def add(self, micro_batch: MicroBatch, part: LossPart, *, logprobs: Tensor, entropy: Tensor) -> None:
        """What one micro-batch found, before any weight moved: logprobs are those of the version the trainer holds."""
        self._loss += float(part.loss)
        for name, value in part.sums.items():
            self._sums[name] += float(value)
        self._sums["entropy"] += float(entropy)
        own = self._is_own[micro_batch.owners]
        if own.any():
            gap = float((logprobs - micro_batch.behaviour)[own].abs().max())
            self._gap = gap if self._gap is None else max(self._gap, gap)

    @property
    def is_sound(self) -> bool:
        """Whether the loss is a finite number; a step that was not is not to be taken."""
        return math.isfinite(self._loss)

    def result(self, *, advantages: Tensor, duration_s: float) -> dict[str, float]:
        """Natural units, finite ones only; `logprob_gap` if rows were written wholly with the trainer's own version."""
        trajectories = self._trajectories
        all_tokens = sum(len(trajectory.tokens) for trajectory in trajectories)
        ages = [self._version - t.oldest_version for t in trajectories if t.oldest_version is not None]
        found = {
            "loss": self._loss,
            "reward_mean": _mean([trajectory.reward for trajectory in trajectories]),
            "signal_fraction": float((advantages != 0).float().mean()),
            "staleness_mean": _mean(ages),
            "staleness_max": float(max(ages, default=0)),
            "tokens": float(all_tokens),
            "tokens_mean": _mean([trajectory.model_tokens for trajectory in trajectories]),
            "tokens_per_s": all_tokens / duration_s,
            "truncated_fraction": _mean([trajectory.is_truncated for trajectory in trajectories]),
        }
        found |= {name: value / max(self._facts.tokens, 1) for name, value in self._sums.items()}
        if self._gap is not None:
            found["logprob_gap"] = self._gap
        return {name: value for name, value in found.items() if math.isfinite(value)}


def _is_written_with(trajectory: Trajectory, version: int) -> bool:
    return all(span.version in (None, version) for span in trajectory.spans)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
