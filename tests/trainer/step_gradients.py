"""Gradients of whole steps, by the trainer's engines and by a reference that shares no code with them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.contract.batches import Batch, Row
from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.spans import Author, Span
from astraflow.contract.trajectories import Trajectory
from astraflow.contract.weights import Dtype
from astraflow.models.causal import named_weights
from astraflow.trainer.engines.local import LocalEngine
from astraflow.trainer.engines.optimizers import OptimizerOptions
from astraflow.trainer.flops import ForwardCost
from astraflow.trainer.shares import Share
from astraflow.trainer.steps import StepPlanner, StepRunner

VOCABULARY = 61
CLIP = 0.2

Gradients: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One step: model, batch, algorithm, and how it is packed."""

    micro_batch_tokens: int = 1 << 20
    is_tied: bool = True
    experts: int = 0
    window: int = 0
    """Tokens that a token attends to in the first of two layers; 0: all."""
    aggregation: str = "token_mean"
    minibatches: int = 1
    temperature: float = 0.8
    entropy_coefficient: float = 0.01
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the engine, which change no result."""
    batch: Batch = field(default_factory=lambda: mixed_batch())

    @property
    def algorithm(self) -> AlgorithmConfig:
        """Options of the algorithm."""
        loss = {
            "kind": "ppo",
            "aggregation": self.aggregation,
            "clip_low": CLIP,
            "clip_high": CLIP,
            "entropy_coefficient": self.entropy_coefficient,
        }
        if self.aggregation == "fixed_length":
            loss["fixed_length"] = 7
        return AlgorithmConfig(
            loss=loss,
            temperature=self.temperature,
            minibatches=self.minibatches,
            advantages=({"kind": "group_centred"},),
        )


def tiny_model(*, is_tied: bool, experts: int = 0, window: int = 0) -> PreTrainedModel:
    """Returns a small Qwen3 with grouped keys, always the same; with experts, two of which compute a token."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "tie_word_embeddings": is_tied,
        "initializer_range": 0.1,
    }
    if window:
        layer_types = ["sliding_attention", "full_attention"]
        sizes |= {"use_sliding_window": True, "sliding_window": window, "layer_types": layer_types}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        if not experts:
            return Qwen3ForCausalLM(Qwen3Config(**sizes))
        return Qwen3MoeForCausalLM(
            Qwen3MoeConfig(moe_intermediate_size=16, num_experts=experts, num_experts_per_tok=2, **sizes)
        )


def mixed_batch() -> Batch:
    """Returns groups of different sizes: a shared prompt, two turns, one row, a long row, a row without an answer."""
    draws = np.random.default_rng(5)
    rows = []
    for group, (prompt_length, answers) in enumerate(
        [(9, [3, 1, 8, 5]), (2, [4, 2]), (5, [6]), (40, [90, 2, 7]), (3, [0, 3])]
    ):
        prompt = draws.integers(0, VOCABULARY, prompt_length)
        rows += [_row(draws, group, member, prompt, length) for member, length in enumerate(answers)]
    return Batch(
        id=BatchId("solver:1"), policy=PolicyId("solver"), version=Version(0), is_redelivered=False, rows=tuple(rows)
    )


def _row(draws: np.random.Generator, group: int, member: int, prompt: np.ndarray[Any, Any], length: int) -> Row:
    pieces: list[tuple[Author, np.ndarray[Any, Any]]] = [(Author.CONTEXT, prompt)]
    if length:
        pieces.append((Author.MODEL, draws.integers(0, VOCABULARY, length)))
    if length > 4:  # a second turn
        pieces.append((Author.CONTEXT, draws.integers(0, VOCABULARY, 3)))
        pieces.append((Author.MODEL, draws.integers(0, VOCABULARY, 2)))
    written = sum(len(tokens) for author, tokens in pieces if author is Author.MODEL)
    return Row(
        group=GroupId(f"train:{group}"),
        task=TaskId(f"train:{group}/{member}"),
        node=NodeId("node-1"),
        trajectory=Trajectory(
            policy=PolicyId("solver"),
            tokens=np.concatenate([tokens for _, tokens in pieces]).astype(np.int32),
            logprobs=draws.normal(-4.2, 0.7, written).astype(np.float32),
            spans=tuple(
                Span(author=author, length=len(tokens), version=Version(0) if author is Author.MODEL else None)
                for author, tokens in pieces
            ),
            reward=float(draws.normal()),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Step:
    """Gradients of the optimizer steps of a batch, before clipping, and the losses."""

    gradients: Sequence[Gradients]
    members: Sequence[Sequence[int]]
    """Trained rows of each optimizer step."""
    loss: float
    """Mean over the optimizer steps."""


def local_step(case: Case) -> Step:
    """Runs a step on the local engine."""
    return sequential_step(case, data_ranks=1)


def divided_step(case: Case) -> Step:
    """Runs the shares of four ranks, some of which may be empty, one after the other; gradients and losses add up."""
    return sequential_step(case, data_ranks=4)


def sequential_step(case: Case, *, data_ranks: int) -> Step:
    """Runs the shares of a step, each on a local engine; no weight changes between its optimizer steps."""
    planner = StepPlanner(
        case.algorithm,
        data_ranks=data_ranks,
        micro_batch_tokens=case.micro_batch_tokens,
        cost=ForwardCost.of_model(tiny_model(is_tied=case.is_tied, experts=case.experts, window=case.window)),
    )
    shares = planner.plan(case.batch).shares
    results = [_share_step(case, share) for share in shares]
    gradients = [
        {name: torch.stack([part[name] for part in parts]).sum(0) for name in parts[0]}
        for parts in zip(*(found for found, _ in results), strict=True)
    ]
    members = [batch.lengths.nonzero()[:, 0].tolist() for batch in shares[0].optimizer_batches]
    return Step(gradients=gradients, members=members, loss=sum(loss for _, loss in results))


def _share_step(case: Case, share: Share) -> tuple[list[Gradients], float]:
    """Returns the gradients of the optimizer steps, and the loss."""
    model = tiny_model(is_tied=case.is_tied, experts=case.experts, window=case.window)
    weights = named_weights(model)
    engine = LocalEngine(
        model,
        OptimizerOptions(learning_rate=1e-30),
        device=torch.device("cpu"),
        published_dtype=Dtype.FLOAT32,
        needs_reference=False,
        **case.engine_options,
    )
    gradients: list[Gradients] = []
    update = engine.update

    def recording(*, is_loss_finite: bool) -> Any:
        gradients.append({name: weight.grad.clone() for name, weight in weights.items() if weight.grad is not None})
        return update(is_loss_finite=is_loss_finite)

    engine.update = recording  # type: ignore[method-assign]
    loss = StepRunner(engine, case.algorithm).run(share).loss
    return gradients, loss


ENGINES: Mapping[str, Callable[[Case], Step]] = {"local": local_step, "shares": divided_step}
"""Engine -> a step on it."""


def reference_gradients(case: Case, members: Sequence[int]) -> tuple[Gradients, float]:
    """Returns gradient and loss of one optimizer step over these rows: padded rows, transformers' own
    forward pass, full logits, plain autograd."""
    model = tiny_model(is_tied=case.is_tied, experts=case.experts, window=case.window)
    model.set_experts_implementation("eager")
    rows = [case.batch.rows[index].trajectory for index in members]
    width = max(len(row.tokens) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    is_token = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, row in enumerate(rows):
        ids[number, : len(row.tokens)] = torch.from_numpy(row.tokens)
        is_token[number, : len(row.tokens)] = True
    logits = model(input_ids=ids, attention_mask=is_token.long()).logits / case.temperature
    distribution = logits.log_softmax(-1)
    entropy = -(distribution.exp() * distribution).sum(-1)
    gains = _gains(case.batch)
    total = sum(row.model_tokens for row in rows)
    loss = torch.zeros(())
    for number, (index, row) in enumerate(zip(members, rows, strict=True)):
        weight = {
            "token_mean": 1 / total,
            "sequence_mean": 1 / (len(rows) * row.model_tokens),
            "fixed_length": 1 / (len(rows) * 7),
        }[case.aggregation]
        for recorded, place in zip(row.logprobs.tolist(), np.flatnonzero(row.loss_mask()).tolist(), strict=True):
            ratio = (distribution[number, place - 1, ids[number, place]] - recorded).exp()
            gain = torch.minimum(ratio * gains[index], ratio.clamp(1 - CLIP, 1 + CLIP) * gains[index])
            loss = loss - weight * (gain + case.entropy_coefficient * entropy[number, place - 1])
    loss.backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}, float(
        loss.detach()
    )


def _gains(batch: Batch) -> list[float]:
    """Returns the rewards minus the mean of the rows of the group that have an answer."""
    counted = [row for row in batch.rows if row.trajectory.model_tokens]
    means = {
        group: np.mean([row.trajectory.reward for row in counted if row.group == group])
        for group in {row.group for row in counted}
    }
    return [float(row.trajectory.reward - means.get(row.group, 0.0)) for row in batch.rows]


def largest_difference(found: Gradients, expected: Gradients) -> float:
    """Returns the largest difference of any element, in units of the largest gradient."""
    assert found.keys() == expected.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    return max(float((found[name] - expected[name]).abs().max()) for name in expected) / largest
