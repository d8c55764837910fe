"""A few sequences with the trainer's own logprobs, against which every engine checks what it loaded."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from transformers import PreTrainedModel

from astraflow.contract.batches import Batch
from astraflow.contract.trajectories import Int32Array, Trajectory
from astraflow.contract.weights import Probe
from astraflow.models.causal import hidden_states, logits_at


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeText:
    """What a probe scores: the tokens of each sequence from its `scored_from` on."""

    sequences: tuple[Int32Array, ...]
    scored_from: tuple[int, ...]

    @classmethod
    def of(cls, sequences: Iterable[Iterable[int]], scored_from: Iterable[int]) -> Self:
        """From plain numbers."""
        return cls(
            sequences=tuple(np.array(list(tokens), dtype=np.int32) for tokens in sequences),
            scored_from=tuple(scored_from),
        )


def text_from(batch: Batch, *, sequences: int, tokens: int) -> ProbeText | None:
    """Rows spread over the batch, cut to `tokens`, scored from the first token the model wrote; None if none fits."""
    usable = [trajectory for row in batch.rows if 0 < _begun(trajectory := row.trajectory) < tokens]
    if not usable:
        return None
    chosen = [usable[place] for place in sorted({*np.linspace(0, len(usable) - 1, sequences).astype(int).tolist()})]
    return ProbeText(
        sequences=tuple(trajectory.tokens[:tokens] for trajectory in chosen),
        scored_from=tuple(_begun(trajectory) for trajectory in chosen),
    )


def made_up_text(vocab_size: int, *, sequences: int, tokens: int, seed: int) -> ProbeText:
    """Random tokens, for the version before the first batch: a wrong weight shows in them just as well."""
    draws = np.random.default_rng(seed)
    return ProbeText(
        sequences=tuple(draws.integers(0, vocab_size, tokens).astype(np.int32) for _ in range(sequences)),
        scored_from=(1,) * sequences,
    )


@torch.inference_mode()
def scored(model: PreTrainedModel, text: ProbeText) -> Probe:
    """The text with the logprobs that `model` gives it at temperature 1."""
    width = max(len(tokens) for tokens in text.sequences)
    ids = np.zeros((len(text.sequences), width), dtype=np.int64)
    places, targets = [], []
    for row, (tokens, begin) in enumerate(zip(text.sequences, text.scored_from, strict=True)):
        ids[row, : len(tokens)] = tokens
        places.append(row * width + np.arange(begin - 1, len(tokens) - 1))
        targets.append(tokens[begin:].astype(np.int64))
    logits = logits_at(
        model,
        hidden_states(model, torch.from_numpy(ids).to(model.device)),
        torch.from_numpy(np.concatenate(places)).to(model.device),
    )
    wanted = torch.from_numpy(np.concatenate(targets)).to(model.device)
    logprobs = logits.log_softmax(-1).gather(-1, wanted[:, None])[:, 0]
    return Probe(
        tokens=np.concatenate(text.sequences).astype("<i4").tobytes(),
        lengths=tuple(len(tokens) for tokens in text.sequences),
        scored_from=text.scored_from,
        logprobs=logprobs.cpu().numpy().astype("<f4").tobytes(),
    )


def _begun(trajectory: Trajectory) -> int:
    """Where the model wrote its first token; 0 when it wrote none."""
    return int(trajectory.loss_mask().argmax())
