"""Probes: a few sequences with the trainer's own logprobs, which every engine compares with its loaded weights."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self, TypeVar

import numpy as np

from astraflow.contract.batches import Batch, Rows
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.contract.weights import Probe
from astraflow.trainer.engines.base import Engine
from astraflow.trainer.step.packing import pack_sequences

T = TypeVar("T")

MIN_SCORED_TOKENS = 256
"""Scored tokens from which on the 99th percentile of the differences means something."""
MAX_SEQUENCES = 64
"""Sequences that a probe takes at most to reach `MIN_SCORED_TOKENS`; more only when the options ask for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeText:
    """Sequences of a probe; the tokens of each from its `scored_from` on are scored."""

    sequences: tuple[Int32Array, ...]
    scored_from: tuple[int, ...]

    @classmethod
    def from_lists(cls, sequences: Iterable[Iterable[int]], scored_from: Iterable[int]) -> Self:
        """Builds a probe text from plain numbers."""
        return cls(
            sequences=tuple(np.array(list(tokens), dtype=np.int32) for tokens in sequences),
            scored_from=tuple(scored_from),
        )


def probe_text_from_batch(
    batch: Batch, *, sequences: int, tokens: int, scored_tokens: int = MIN_SCORED_TOKENS
) -> ProbeText | None:
    """Returns rows spread over the batch, cut to `tokens`, scored from the first model token; None if none fits.

    scored_tokens: more than `sequences` rows are taken, at most `MAX_SEQUENCES`, until so many tokens are scored.
    """
    columns = Rows.of(batch.rows).columns
    prompts = ((row, columns.prompt_length(row)) for row in range(len(columns)))
    usable = [
        (columns.tokens[begin:end][:tokens], length)
        for (row, length), (begin, end) in zip(prompts, pairwise(columns.token_ends), strict=True)
        if 0 < length < min(tokens, end - begin)
    ]
    if not usable:
        return None
    count = sequences
    chosen = _spread(usable, count)
    while _scored(chosen) < scored_tokens and len(chosen) == count < max(sequences, MAX_SEQUENCES):
        count = min(2 * count, max(sequences, MAX_SEQUENCES))
        chosen = _spread(usable, count)
    texts, scored_from = zip(*chosen, strict=True)
    return ProbeText(sequences=texts, scored_from=scored_from)


def random_probe_text(
    vocab_size: int, *, sequences: int, tokens: int, seed: int, scored_tokens: int = MIN_SCORED_TOKENS
) -> ProbeText:
    """Returns random tokens, for the version before the first batch: they reveal a wrong weight just as well.

    tokens: length of a sequence, at least 2. scored_tokens: more than `sequences` are drawn, at most `MAX_SEQUENCES`,
    so that so many tokens are scored.
    """
    draws = np.random.default_rng(seed)
    sequences = max(sequences, min(MAX_SEQUENCES, -(-scored_tokens // (tokens - 1))))
    return ProbeText(
        sequences=tuple(draws.integers(0, vocab_size, tokens).astype(np.int32) for _ in range(sequences)),
        scored_from=(1,) * sequences,
    )


def score_probe(engine: Engine, text: ProbeText) -> Probe:
    """Returns the text with the logprobs that the engine's policy assigns to it at temperature 1. Collective."""
    logprobs = engine.score(pack_sequences(text.sequences, text.scored_from)).logprobs
    return Probe(
        tokens=np.concatenate(text.sequences).astype("<i4").tobytes(),
        lengths=tuple(len(tokens) for tokens in text.sequences),
        scored_from=text.scored_from,
        logprobs=logprobs.cpu().numpy().astype("<f4").tobytes(),
    )


def _spread(sequences: Sequence[T], count: int) -> list[T]:
    """Returns `count` of the sequences at equal distances, or all of them."""
    indices = np.linspace(0, len(sequences) - 1, count).astype(int)
    return [sequences[index] for index in sorted({*indices.tolist()})]


def _scored(sequences: Iterable[tuple[Int32Array, int]]) -> int:
    """Returns the number of tokens that a probe of these sequences, each with its `scored_from`, scores."""
    return sum(len(tokens) - scored_from for tokens, scored_from in sequences)
