"""Differences of a tiny model's logprobs and gradients in each batching from those of every sequence alone."""

from asyncio import new_event_loop
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.rollouts.generation import Sampling
from astraflow.raas.engines.local.batcher import BatchLimits
from astraflow.raas.engines.local.choice import exact_batcher
from astraflow.raas.engines.local.sequences import Sequence
from astraflow.trainer.engines.base import Batching, Pack, Segment
from astraflow.trainer.engines.scoring.choice import choose_batching
from astraflow.trainer.engines.scoring.scorer import FORWARDS, Scorer
from benchmarks.model_families.configurations import VOCABULARY, tiny_model

TOLERANCE = 1e-5
"""Largest difference of exact logprobs, in nats, and of exact gradients, as a share of their norm."""

_ROUNDINGS = 3
"""Changes by rounding that one difference may be as large as: they are measured for one draw."""
_LARGEST_ROUNDING = 1e-3
"""Beyond it a change is not rounding: a model draws at random."""
_ENLARGEMENT = 2.0
_LARGEST_LOGIT = 10.0
_PREFIX = 11
_TAILS = (12, 9, 1)
_ALONE = 7
"""Tokens of a prompt, of the answers to it, and of a sequence without a group."""
_GENERATED = 6
"""Tokens of each generated answer."""
_LIMITS = BatchLimits(sequences=16, cache_tokens=4096, prefill_tokens=4096, prefix_bytes=2**30)

_PROBLEMS = (AstraFlowError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What models raise that do not support a batching."""

Computed: TypeAlias = tuple[Tensor, Tensor]
"""Logprobs `[tokens]`, and the whole gradient `[parameters]` of an uneven sum of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Difference of a computation from that of every sequence alone."""

    logprobs: float
    """Largest difference, nats."""
    gradient: float
    """Norm of the difference, as a share of the gradient's norm."""

    @classmethod
    def between(cls, computed: Computed, alone: Computed) -> "Difference":
        """Compares two computations."""
        return cls(
            logprobs=float((computed[0] - alone[0]).abs().max()),
            gradient=float((computed[1] - alone[1]).norm() / alone[1].norm()),
        )

    def is_within(self, rounding: "Difference") -> bool:
        """Returns whether rounding alone can make it."""
        return self.logprobs <= _allowed(rounding.logprobs) and self.gradient <= _allowed(rounding.gradient)


def _allowed(rounding: float) -> float:
    return max(TOLERANCE, min(_ROUNDINGS * rounding, _LARGEST_ROUNDING))


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyResult:
    """Measurements of one family. A text says why something cannot be computed."""

    family: str
    choice: Batching | str
    """What `batching = "auto"` chooses, or the code of the error that refuses the model."""
    batchings: Mapping[Batching, Difference | str]
    rounding: Difference
    """Change by random changes of the last bit of each weight: what no float32 computation can be below."""
    engine: str
    """How the engine `local_torch` batches the model."""
    engine_difference: float | None
    """Largest difference of the logprobs of tokens that it generated from those that the trainer computes, nats."""

    @property
    def engine_agrees(self) -> bool:
        """Whether the engine generates what the trainer computes."""
        return (self.engine_difference or 0.0) <= _allowed(self.rounding.logprobs)

    def is_exact(self, batching: Batching) -> bool:
        """Returns whether a batching computes what every sequence has alone."""
        difference = self.batchings.get(batching)
        return isinstance(difference, Difference) and difference.is_within(self.rounding)


def measured(family: str) -> FamilyResult:
    """Measures a family."""
    scorer = Scorer(tiny_model(family), torch.device("cpu"))
    choice = _choice(scorer)
    scorer.use(None)
    enlarge(scorer.model)
    alone = _with_gradient(scorer, lambda: _logprobs_alone(scorer.model))
    batchings = {batching: _difference(scorer, batching, alone) for batching in FORWARDS}
    way, engine_difference = _engine(scorer, choice) if isinstance(choice, Batching) else ("", None)
    scorer.use(None)
    _change_last_bits(scorer.model)
    rounding = Difference.between(_with_gradient(scorer, lambda: _logprobs_alone(scorer.model)), alone)
    return FamilyResult(
        family=family,
        choice=choice,
        batchings=batchings,
        rounding=rounding,
        engine=way,
        engine_difference=engine_difference,
    )


def _choice(scorer: Scorer) -> Batching | str:
    try:
        return choose_batching(scorer, setting="").batching
    except AstraFlowError as problem:
        return problem.code


@torch.no_grad()
def enlarge(model: PreTrainedModel) -> None:
    """Enlarges the weights, so that attention is uneven, and the head, so that bounds of logits show. Padding gets an
    embedding: from zeros, all keys have one score, and any of them is a choice of sparse attention."""
    embedded: Any = model.get_input_embeddings().weight
    embedded[(embedded == 0).all(-1)] = embedded[-1].clone()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.mul_(_ENLARGEMENT)
    head = model.get_output_embeddings()
    if isinstance(head, nn.Linear) and head.weight is not model.get_input_embeddings().weight:
        head.weight.mul_(_LARGEST_LOGIT / float(_logits(model, _sequences()[0]).abs().max()))


@torch.no_grad()
def _change_last_bits(model: PreTrainedModel) -> None:
    draws = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.mul_(1 + 2.0**-24 * torch.randn(parameter.shape, generator=draws))


def _difference(scorer: Scorer, batching: Batching, alone: Computed) -> Difference | str:
    scorer.use(batching)
    if obstacle := scorer.obstacle():
        return obstacle
    try:
        return Difference.between(_with_gradient(scorer, lambda: scorer(scorer.inputs(_pack())).logprobs), alone)
    except _PROBLEMS as problem:
        return f"{type(problem).__name__}: {problem}"


def _engine(scorer: Scorer, batching: Batching) -> tuple[str, float | None]:
    """Returns how `local_torch` batches the model, and how far the logprobs of a group that it generates are from those
    of the trainer's batching."""
    scorer.use(None)
    scorer.eval()
    *members, other = _sequences()
    loop = new_event_loop()
    try:
        batcher = exact_batcher(scorer.model, _LIMITS)
        texts = [*([members[0][:_PREFIX]] * len(members)), other]
        sampling = Sampling(max_new_tokens=_GENERATED)
        sequences = [
            Sequence(
                request_id=str(key),
                prompt=text.numpy().astype(np.int32),
                sampling=sampling,
                random_key=key,
                reply=loop.create_future(),
            )
            for key, text in enumerate(texts)
        ]
        for _ in batcher.admit(deque(sequences)):
            pass
        while batcher.running:
            batcher.step()
    except AstraFlowError as problem:
        return problem.code, None
    finally:
        loop.close()
    scorer.use(batching)
    rows = [torch.from_numpy(sequence.all_tokens().astype(np.int64)) for sequence in sequences]
    pack = _packed(rows[:-1], rows[-1])
    with torch.no_grad():
        trained = scorer(scorer.inputs(pack)).logprobs
    generated = torch.tensor([logprob for sequence in sequences for logprob in sequence.logprobs])
    count = len(generated) - _GENERATED
    kept = torch.cat([trained[:count], trained[-_GENERATED:]])
    return batcher.way, float((kept - generated).abs().max())


def _with_gradient(scorer: Scorer, compute: Callable[[], Tensor]) -> Computed:
    """Returns logprobs, and the gradient of an uneven sum of them, in the training pass."""
    scorer.train()
    scorer.zero_grad()
    logprobs = compute()
    (logprobs * torch.linspace(0.5, 1.5, len(logprobs))).sum().backward()
    gradients = [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in scorer.parameters()
    ]
    return logprobs.detach(), torch.cat([gradient.flatten() for gradient in gradients])


def _sequences() -> list[Tensor]:
    """Returns the answers to a prompt, each with it, and a sequence without a group."""
    draws = torch.Generator().manual_seed(1)
    prompt, *parts = (torch.randint(3, VOCABULARY, (size,), generator=draws) for size in (_PREFIX, *_TAILS, _ALONE))
    return [*(torch.cat([prompt, part]) for part in parts[:-1]), parts[-1]]


def _logprobs_alone(model: PreTrainedModel) -> Tensor:
    """Returns the logprobs of the answers, and of the sequence without a group but its first token."""
    *members, other = _sequences()
    parts = [_logprobs(model, member)[_PREFIX - 1 :] for member in members]
    return torch.cat([*parts, _logprobs(model, other)])


def _logprobs(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    logprobs = _logits(model, tokens)[:-1].float().log_softmax(-1)
    return logprobs.gather(-1, tokens[1:, None])[:, 0]


def _logits(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=tokens[None], use_cache=False).logits[0]
    return logits


def _pack() -> Pack:
    *members, other = _sequences()
    return _packed(members, other)


def _packed(members: Rows[Tensor], other: Tensor) -> Pack:
    """Returns a pack of a group with a shared prompt and a sequence without a group; all but the prompt is trained."""
    tails = [member[_PREFIX:] for member in members]
    ends = torch.tensor([_PREFIX, *map(len, tails)]).cumsum(0).tolist()
    answers, rest = list(pairwise(ends)), ends[-1]
    positions = [torch.arange(_PREFIX), *(torch.arange(_PREFIX, len(member)) for member in members)]
    predictors = [_predictors(begin, end) for begin, end in answers]
    return Pack(
        input_ids=torch.cat([members[0][:_PREFIX], *tails, other]),
        positions=torch.cat([*positions, torch.arange(len(other))]),
        segments=(
            Segment(begin=0, end=_PREFIX),
            *(Segment(begin=begin, end=end, prefix_begin=0, prefix_end=_PREFIX) for begin, end in answers),
            Segment(begin=rest, end=rest + len(other)),
        ),
        predictors=torch.cat([*predictors, torch.arange(rest, rest + len(other) - 1)]),
        targets=torch.cat([*tails, other[1:]]),
    )


def _predictors(begin: int, end: int) -> Tensor:
    """Returns the positions that predict the tokens of an answer: the last of the prompt predicts the first."""
    return torch.tensor([_PREFIX - 1, *range(begin, end - 1)])
