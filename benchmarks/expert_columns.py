"""Experts of tokens: what replay does to the mismatch of engine and trainer, and how small their column becomes.

    python -m benchmarks.expert_columns

Mismatch: sequences that `local_torch` writes with rounding of its own, scored by a trainer in float32, of a dense model
and of a mixture with 4 of 16 experts in 4 layers, with random weights; with the engine's experts replayed where a token
was sampled, as in a run, and at the positions of prompts too. Size: the column of a model with 8 of 128
experts in 48 layers, where a token takes over a share of the choices of the token before it and draws the others from a
skewed distribution of each layer; the experts that the engine recorded of the small mixture; and the least that any
lossless coding needs for choices of alike experts, with a share of repeated ones.
"""

import asyncio
import math
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import zstandard
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.contract.rollouts.expert_columns import decoded_experts
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
TINY = Mixture(layers=4, chosen=4, experts=16)
LARGE = Mixture(layers=48, chosen=8, experts=128)
SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)
LAYOUTS: Mapping[str, Callable[[ColumnArray], ColumnArray]] = {
    "tokens": lambda experts: experts,
    "layers": lambda experts: experts.T,
    "tokens, sorted": lambda experts: np.sort(experts, -1),
    "layers, sorted": lambda experts: np.sort(experts, -1).T,
}


def model_of(spec: dict[str, Any]) -> PreTrainedModel:
    """Returns a model with the variance of trained weights."""
    model = make_torch.model(spec=spec)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                draws = torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
                weight.copy_((draws * weight.shape[-1] ** -0.5).bfloat16())
    return model


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """Sequences of an engine."""

    pack: Pack
    """With the experts of the sampled tokens."""
    logprobs: Tensor
    """Log-probabilities that the engine gave the sampled tokens."""
    whole: Pack
    """The same sequences with the experts of all positions: each token but the first counts as sampled."""
    is_sampled: Tensor
    """Tokens of `whole` that the engine has sampled."""


async def rollouts(model: PreTrainedModel, spec: dict[str, Any], options: dict[str, Any]) -> Rollouts:
    """Returns 48 sequences of the engine. Experts of a position of a prompt are those of a request that ends there."""
    draws = np.random.default_rng(0)
    prompts = [draws.integers(4, model.config.vocab_size, draws.integers(10, 60)).astype(np.int32) for _ in range(48)]
    engine = engines.build({"kind": "local_torch", "seed": 1, **options}, spec)
    await engine.load(make_torch.published(model))
    sampling = Sampling(max_new_tokens=40, experts=TokenColumn.EXPERTS in engine.records)
    requests = [engine.generate(str(number), prompt, sampling) for number, prompt in enumerate(prompts)]
    results: list[Generation] = await asyncio.gather(*requests)
    parts = [prompt[:end] for prompt in prompts for end in range(1, len(prompt))] if sampling.experts else []
    single = replace(sampling, max_new_tokens=1)
    read = await asyncio.gather(*(engine.generate(f"part {number}", part, single) for number, part in enumerate(parts)))
    await engine.close()
    sequences = [np.concatenate([prompt, result.tokens]) for prompt, result in zip(prompts, results, strict=True)]
    lengths = [len(prompt) for prompt in prompts]
    columns, of_prompts = map(_experts, (results, read))
    begins = np.cumsum([0, *(length - 1 for length in lengths)])
    answers = np.cumsum([0, *(len(result.tokens) for result in results)])
    every = [
        values[begin:end]
        for index in range(len(prompts))
        for values, (begin, end) in (
            (of_prompts, begins[index : index + 2]),
            (columns, answers[index : index + 2]),
        )
    ]
    return Rollouts(
        pack=replace(pack_sequences(sequences, lengths), experts=torch.from_numpy(columns)),
        logprobs=torch.from_numpy(np.concatenate([result.logprobs for result in results])),
        whole=replace(pack_sequences(sequences, [1] * len(prompts)), experts=torch.from_numpy(np.concatenate(every))),
        is_sampled=torch.cat(
            [torch.arange(1, len(sequence)) >= length for sequence, length in zip(sequences, lengths, strict=True)]
        ),
    )


def _experts(results: list[Generation]) -> ColumnArray:
    columns = [result.columns.get(TokenColumn.EXPERTS, np.zeros((0, 1), np.uint8)) for result in results]
    return np.concatenate(columns) if columns else np.zeros((0, 1), np.uint8)


def report_mismatch(name: str, trainer: Tensor, engine: Tensor) -> None:
    gaps = (trainer - engine).double()
    k3, largest = float((gaps.exp() - 1 - gaps).mean()), float(gaps.abs().max())
    sys.stdout.write(f"{name:40} mean k3 {k3:.1e} nats, largest difference {largest:.2f} nats\n")
    sys.stdout.flush()


def compare(name: str, options: dict[str, Any]) -> ColumnArray:
    """Prints the mismatch of the dense model, and of the mixture without and with replay; returns its experts."""
    plain = replace(SPEC, replays_experts=False)
    dense, mixture = model_of(DENSE), model_of(MIXTURE)
    written = asyncio.run(rollouts(dense, DENSE, options))
    scores = LocalEngine(dense, plain).score(replace(written.pack, experts=None))
    report_mismatch(f"{name}, dense", scores.logprobs, written.logprobs)
    written = asyncio.run(rollouts(mixture, MIXTURE, options))
    scores = LocalEngine(deepcopy(mixture), plain).score(written.pack)
    report_mismatch(f"{name}, mixture", scores.logprobs, written.logprobs)
    replaying = LocalEngine(mixture, SPEC)
    scores = replaying.score(written.pack)
    assert scores.replayed_choices is not None and written.pack.experts is not None
    changed, replayed = scores.replayed_choices.tolist()
    report_mismatch(f"{name}, mixture, {changed / replayed:.1%} changed, replay", scores.logprobs, written.logprobs)
    everywhere = replaying.score(written.whole).logprobs[written.is_sampled]
    report_mismatch(f"{name}, mixture, replay with prompts", everywhere, written.logprobs)
    return decoded_experts(written.pack.experts.numpy(), TINY).astype(np.uint8)


def synthetic(share: float, tokens: int = 4096) -> ColumnArray:
    """Returns the experts of a large mixture, `[tokens, layers, chosen]`. share: of those that a token takes over from
    the one before."""
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
    return chosen.astype(np.uint8)


def report_sizes(name: str, experts: ColumnArray) -> None:
    repeated = (experts[1:, :, :, None] == experts[:-1, :, None, :]).any(-1).mean()
    sizes = {
        layout: len(zstandard.compress(np.ascontiguousarray(change(experts)).tobytes(), 3)) / len(experts)
        for layout, change in LAYOUTS.items()
    }
    text = ", ".join(f"{layout} {size:.0f}" for layout, size in sizes.items())
    sys.stdout.write(f"{name}: {repeated:.0%} repeated; zstd of a byte for each, by {text} bytes for each token\n")
    sys.stdout.flush()


def least_bytes(mixture: Mixture, share: float) -> float:
    """Returns the information of a token's sets of experts, which are alike: bytes for each token.

    share: probability with which an expert of the token before is kept; the others are drawn from those that are not.
    """
    chosen, experts = mixture.chosen, mixture.experts
    bits = 0.0
    for kept in range(chosen + 1):
        probability = math.comb(chosen, kept) * share**kept * (1 - share) ** (chosen - kept)
        sets = math.comb(chosen, kept) * math.comb(experts - chosen, chosen - kept)
        bits += probability * (math.log2(sets) - math.log2(probability)) if probability else 0.0
    return mixture.layers * bits / 8


def report_floors(mixture: Mixture) -> None:
    """Prints sizes of a token: as it is, with numbers of few bits, as the number of a set, and the least possible."""
    numbers = mixture.layers * mixture.chosen * math.ceil(math.log2(mixture.experts)) / 8
    sets = mixture.layers * math.ceil(math.log2(math.comb(mixture.experts, mixture.chosen))) / 8
    alike = mixture.chosen / mixture.experts
    floors = ", ".join(f"{share:.0%}: {least_bytes(mixture, share):.0f}" for share in (alike, *SHARES[2:]))
    sys.stdout.write(
        f"{mixture.layers} x {mixture.chosen} of {mixture.experts}: {mixture.width} bytes, numbers {numbers:.0f}, "
        f"sets {sets:.0f}, least with repeated shares of {floors}\n"
    )


def main() -> None:
    """Prints both tables."""
    torch.set_num_threads(1)
    for name, options in ENGINES.items():
        experts = compare(name, options)
    report_sizes("tiny mixture", experts)
    for share in SHARES:
        report_sizes(f"48 x 8 of 128, share {share:.0%}", synthetic(share))
    for layers, chosen, count in ((48, 8, 128), (64, 8, 128), (58, 8, 256), (24, 4, 32)):
        report_floors(Mixture(layers=layers, chosen=chosen, experts=count))


if __name__ == "__main__":
    main()
