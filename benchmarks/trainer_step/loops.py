"""Loops that train the same batches with the same loss: the local engine, and the loop that one writes by hand."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.contract.batches import Batch
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.contract.weights import Dtype
from astraflow.trainer.engines.local import LocalEngine
from astraflow.trainer.engines.optimizers import OptimizerOptions
from astraflow.trainer.engines.spec import EngineSpec
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.planner import StepPlanner
from astraflow.trainer.step.runner import StepResult, StepRunner
from astraflow.trainer.step.shares import Plan
from benchmarks.trainer_step.rows import SMALL, model_of

LEARNING_RATE, CLIP, MAX_NORM = 1e-4, 0.2, 1.0
ALGORITHM = AlgorithmConfig(advantages=(), loss={"kind": "ppo", "clip_low": CLIP, "clip_high": CLIP}, max_mismatch=None)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Model, device and size of the micro-batches."""

    vocabulary: int
    micro_batch_tokens: int
    shape: dict[str, Any] = field(default_factory=lambda: dict(SMALL))
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    optimizer: dict[str, Any] = field(default_factory=dict)
    """Further options of the local engine's optimizer."""
    engine: dict[str, Any] = field(default_factory=dict)
    """Further options of the local engine: `recompute`, `compile_blocks`, `batching`."""

    def model(self) -> PreTrainedModel:
        """Returns the model with random weights."""
        return model_of(self.vocabulary, self.shape, device=self.device, dtype=self.dtype)


class Loop(Protocol):
    """Trains batches."""

    def step(self, batch: Batch) -> float:
        """Trains the batch; returns the loss."""


class LocalLoop:
    """Steps of the local engine."""

    def __init__(self, setting: Setting) -> None:
        model = setting.model()
        self.engine = LocalEngine(
            model,
            EngineSpec(
                optimizer=OptimizerOptions(learning_rate=LEARNING_RATE, grad_clip=MAX_NORM, **setting.optimizer),
                device=torch.device(setting.device),
                published_dtype=Dtype.FLOAT32 if setting.dtype == torch.float32 else Dtype.BFLOAT16,
                needs_reference=False,
                **setting.engine,
            ),
        )
        self._planner = StepPlanner(
            ALGORITHM,
            data_ranks=1,
            micro_batch_tokens=setting.micro_batch_tokens,
            cost=ForwardCost.of_model(model),
            batching=self.engine.batching,
        )
        self._runner = StepRunner(self.engine, ALGORITHM)

    def step(self, batch: Batch) -> float:
        """Trains the batch; returns the loss."""
        return self.run(batch)[1].loss

    def run(self, batch: Batch) -> tuple[Plan, StepResult]:
        """Trains the batch; returns its plan and its result."""
        plan = self._planner.plan(batch)
        return plan, self._runner.run(plan.shares[0])


class BareLoop:
    """The loop that one writes with transformers alone: rows padded to the longest, full logits, plain log-softmax,
    fused AdamW on the model's own weights."""

    def __init__(self, setting: Setting) -> None:
        self._model = setting.model()
        self._device = setting.device
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.999), weight_decay=0.0, fused=True
        )
        self._micro_batch_tokens = setting.micro_batch_tokens

    def step(self, batch: Batch) -> float:
        """Trains the batch; returns the loss."""
        total = sum(row.trajectory.model_tokens for row in batch.rows)
        loss = 0.0
        for rows in micro_batches([row.trajectory for row in batch.rows], self._micro_batch_tokens):
            part = self._loss(rows) / total
            part.backward()
            loss += float(part.detach())
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), MAX_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss

    def _loss(self, rows: Sequence[Trajectory]) -> torch.Tensor:
        width = max(len(row.tokens) for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.int64)
        is_token = torch.zeros(len(rows), width, dtype=torch.int64)
        is_trained = torch.zeros(len(rows), width, dtype=torch.bool)
        recorded = torch.zeros(len(rows), width)
        for number, row in enumerate(rows):
            length = len(row.tokens)
            ids[number, :length], is_token[number, :length] = torch.from_numpy(row.tokens), 1
            is_trained[number, :length] = torch.from_numpy(row.loss_mask())
            recorded[number, is_trained[number]] = torch.from_numpy(row.logprobs)
        rewards = torch.tensor([row.reward for row in rows])[:, None]
        ids, is_token, is_trained, recorded, rewards = (
            part.to(self._device) for part in (ids, is_token, is_trained, recorded, rewards)
        )
        logits = self._model(input_ids=ids, attention_mask=is_token).logits[:, :-1].float()
        logprobs = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        ratio = (logprobs - recorded[:, 1:]).exp()
        objective = torch.minimum(ratio * rewards, ratio.clamp(1 - CLIP, 1 + CLIP) * rewards)
        return -(objective * is_trained[:, 1:]).sum()


def micro_batches(rows: Sequence[Trajectory], tokens: int) -> Iterator[Sequence[Trajectory]]:
    """Divides rows, padded to the longest of all, into micro-batches of at most `tokens` tokens, or of one row."""
    width = max(len(row.tokens) for row in rows)
    count = max(1, tokens // width)
    return (rows[begin : begin + count] for begin in range(0, len(rows), count))


def loops_by_name(names: Sequence[str]) -> dict[str, Callable[[Setting], Loop]]:
    """Returns the loops `local`, `bare` and `trl`. Raises: SystemExit when TRL is not installed."""
    known: dict[str, Callable[[Setting], Loop]] = {"local": LocalLoop, "bare": BareLoop}
    if "trl" in names:
        from benchmarks.trainer_step.trl_loop import TrlLoop

        known["trl"] = TrlLoop
    return {name: known[name] for name in names}
