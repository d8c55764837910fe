"""Experts of tokens: what replay does to the mismatch of engine and trainer, and how small their column becomes.

    python -m benchmarks.expert_columns

Mismatch: sequences that `local_torch` writes with rounding of its own, scored by a trainer in float32, of a dense model
and of a mixture with 4 of 16 experts in 4 layers, with random weights. Size: the column of a model with 8 of 128
experts in 48 layers, where a token takes over a share of the choices of the token before it and draws the others from a
skewed distribution of each layer; and the column that the engine recorded of the small mixture.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import zstandard
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.contract.rollouts.expert_columns import encoded_experts
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.rollouts.token_columns import ColumnArray, TokenColumn
from astraflow.contract.weights import Dtype
from astraflow.raas.engines import engines
from astraflow.trainer.engines.base import Pack
from astraflow.trainer.engines.local import LocalEngine
from astraflow.trainer.engines.optimizers import OptimizerOptions
from astraflow.trainer.engines.spec import EngineSpec
from astraflow.trainer.step.packing import pack_sequences
from tests import make_torch

DENSE: dict[str, Any] = {"kind": "tiny", "layers": 4, "hidden_size": 64, "intermediate_size": 64}
MIXTURE = {**DENSE, "experts": 16, "experts_per_token": 4}
ENGINES = {
    "bfloat16": {"compute_dtype": "bfloat16"},
    "int8 weights": {"weights": "int8"},
    "int4 weights": {"weights": "int4"},
}
SPEC = EngineSpec(
    optimizer=OptimizerOptions(), device=torch.device("cpu"), published_dtype=Dtype.BFLOAT16, replays_experts=True
)
LARGE = Mixture(layers=48, chosen=8, experts=128)
SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)
LAYOUTS: Mapping[str, Callable[[ColumnArray, int], ColumnArray]] = {
    "tokens": lambda column, _: column,
    "layers": lambda column, _: column.T,
    "tokens, sorted": lambda column, chosen: _sorted(column, chosen),
    "layers, sorted": lambda column, chosen: _sorted(column, chosen).T,
}


def _sorted(column: ColumnArray, chosen: int) -> ColumnArray:
    return np.sort(column.reshape(len(column), -1, chosen), -1).reshape(column.shape)


def model_of(spec: dict[str, Any]) -> PreTrainedModel:
    """Returns a model with the variance of trained weights."""
    model = make_torch.model(spec=spec)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                draws = torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
                weight.copy_((draws * weight.shape[-1] ** -0.5).bfloat16())
    return model


async def rollouts(model: PreTrainedModel, spec: dict[str, Any], options: dict[str, Any]) -> tuple[Pack, Tensor]:
    """Returns 48 sequences of the engine with the experts that it recorded, and its logprobs."""
    draws = np.random.default_rng(0)
    prompts = [draws.integers(4, model.config.vocab_size, draws.integers(10, 60)).astype(np.int32) for _ in range(48)]
    engine = engines.build({"kind": "local_torch", "seed": 1, **options}, spec)
    await engine.load(make_torch.published(model))
    sampling = Sampling(max_new_tokens=40, experts=TokenColumn.EXPERTS in engine.records)
    requests = [engine.generate(str(number), prompt, sampling) for number, prompt in enumerate(prompts)]
    results: list[Generation] = await asyncio.gather(*requests)
    await engine.close()
    sequences = [np.concatenate([prompt, result.tokens]) for prompt, result in zip(prompts, results, strict=True)]
    pack = pack_sequences(sequences, [len(prompt) for prompt in prompts])
    columns = [result.columns.get(TokenColumn.EXPERTS, np.zeros((0, 1), np.uint8)) for result in results]
    logprobs = torch.from_numpy(np.concatenate([result.logprobs for result in results]))
    return replace(pack, experts=torch.from_numpy(np.concatenate(columns))), logprobs


def report_mismatch(name: str, trainer: Tensor, engine: Tensor) -> None:
    gaps = (trainer - engine).double()
    k3, largest = float((gaps.exp() - 1 - gaps).mean()), float(gaps.abs().max())
    sys.stdout.write(f"{name:40} mean k3 {k3:.1e} nats, largest difference {largest:.2f} nats" + "\n")
    sys.stdout.flush()


def compare(name: str, options: dict[str, Any]) -> ColumnArray:
    """Prints the mismatch of the dense model, and of the mixture without and with replay; returns the column."""
    plain = replace(SPEC, replays_experts=False)
    dense, mixture = model_of(DENSE), model_of(MIXTURE)
    pack, engine = asyncio.run(rollouts(dense, DENSE, options))
    report_mismatch(f"{name}, dense", LocalEngine(dense, plain).score(replace(pack, experts=None)).logprobs, engine)
    pack, engine = asyncio.run(rollouts(mixture, MIXTURE, options))
    report_mismatch(f"{name}, mixture", LocalEngine(deepcopy(mixture), plain).score(pack).logprobs, engine)
    scores = LocalEngine(mixture, SPEC).score(pack)
    assert scores.replayed_choices is not None and pack.experts is not None
    changed, replayed = scores.replayed_choices.tolist()
    report_mismatch(f"{name}, mixture, {changed / replayed:.1%} changed, replay", scores.logprobs, engine)
    return np.asarray(pack.experts.numpy())


def synthetic(share: float, tokens: int = 4096) -> ColumnArray:
    """Returns the column of a large mixture. share: of the choices that a token takes over from the one before."""
    draws = np.random.default_rng(0)
    popularity = np.log(draws.dirichlet(np.full(LARGE.experts, 0.5), LARGE.layers) + 1e-9)
    chosen = np.zeros((tokens, LARGE.layers, LARGE.chosen), np.int64)
    for token in range(tokens):
        scores = popularity + draws.gumbel(size=popularity.shape)
        if token:
            before = chosen[token - 1]
            kept = np.where(draws.random(before.shape) < share, np.inf, -np.inf)
            own = np.take_along_axis(scores, before, 1)
            np.put_along_axis(scores, before, np.maximum(own, kept), 1)
        chosen[token] = np.argsort(-scores, 1)[:, : LARGE.chosen]
    return encoded_experts(chosen, LARGE)


def report_sizes(name: str, column: ColumnArray, *, chosen: int) -> None:
    sets = column.reshape(len(column), -1, chosen)
    repeated = (sets[1:, :, :, None] == sets[:-1, :, None, :]).any(-1).mean()
    sizes = {
        layout: len(zstandard.compress(np.ascontiguousarray(change(column, chosen)).tobytes(), 3)) / len(column)
        for layout, change in LAYOUTS.items()
    }
    text = ", ".join(f"{layout} {size:.0f}" for layout, size in sizes.items())
    sys.stdout.write(f"{name}: {repeated:.0%} repeated, {column.shape[1]} bytes for each token; zstd by {text}" + "\n")
    sys.stdout.flush()


def main() -> None:
    """Prints both tables."""
    torch.set_num_threads(1)
    for name, options in ENGINES.items():
        column = compare(name, options)
    report_sizes("tiny mixture", column, chosen=4)
    for share in SHARES:
        report_sizes(f"48 x 8 of 128, share {share:.0%}", synthetic(share), chosen=LARGE.chosen)


if __name__ == "__main__":
    main()
