"""Batches and models of the benchmarks of training steps."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from astraflow.contract.batches import Batch, Row
from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.models.causal import cast

SMALL_VOCABULARY, LARGE_VOCABULARY = 128, 151_936
SMALL = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
"""Options of a Qwen3 of width 128: 0.8 million parameters with a small vocabulary."""


def model_of(
    vocabulary: int, shape: dict[str, Any] = SMALL, *, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """Returns a Qwen3 with random weights, always the same on one device."""
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3ForCausalLM(Qwen3Config(vocab_size=vocabulary, **shape))
    return cast(model, device=torch.device(device), dtype=dtype)


def batch_of(groups: Sequence[tuple[int, Sequence[int]]], vocabulary: int) -> Batch:
    """groups: length of the prompt, and lengths of the members' answers."""
    draws = np.random.default_rng(0)
    rows = []
    for group, (prompt_length, answers) in enumerate(groups):
        prompt = draws.integers(0, vocabulary, prompt_length)
        for member, length in enumerate(answers):
            rows.append(
                Row(
                    group=GroupId(f"train:{group}"),
                    task=TaskId(f"train:{group}/{member}"),
                    node=NodeId("node-1"),
                    trajectory=Trajectory(
                        policy=PolicyId("solver"),
                        tokens=np.concatenate([prompt, draws.integers(0, vocabulary, length)]).astype(np.int32),
                        logprobs=np.full(length, -np.log(vocabulary), dtype=np.float32),
                        spans=(
                            Span(author=Author.CONTEXT, length=prompt_length),
                            Span(author=Author.MODEL, length=length, version=Version(0)),
                        ),
                        reward=float(draws.normal()),
                    ),
                )
            )
    return Batch(
        id=BatchId("solver:1"), policy=PolicyId("solver"), version=Version(0), is_redelivered=False, rows=tuple(rows)
    )


def lengths_lognormal(rows: int) -> list[int]:
    """Returns lengths with sigma 0.8 and a median of 100 tokens."""
    return [int(length) for length in np.random.default_rng(1).lognormal(np.log(100), 0.8, rows).clip(8, 1000)]


BATCHES: dict[str, Callable[[], Batch]] = {
    "equal lengths": lambda: batch_of([(32, [96])] * 64, SMALL_VOCABULARY),
    "lognormal lengths": lambda: batch_of([(16, [length]) for length in lengths_lognormal(64)], SMALL_VOCABULARY),
    "groups of 8, prompt 75 %": lambda: batch_of([(192, [64] * 8)] * 8, SMALL_VOCABULARY),
}
