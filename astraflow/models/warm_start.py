"""Short supervised training on right answers, until sampling gets some of them right: the start that RL improves on."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.contract.errors import InvalidInput
from astraflow.contract.trajectories import Int32Array
from astraflow.models.base import Example, OnProgress, WarmStartProgress
from astraflow.models.causal import hidden_states, logits_at
from astraflow.models.tiny import WarmStartOptions
from astraflow.models.tokenizers import ChatTokenizer

_MEASURED_STEPS = 3
"""Accuracy is averaged over this many batches before it may end the warm start."""


def warm_start(
    model: PreTrainedModel,
    tokenizer: ChatTokenizer,
    examples: Iterator[Example],
    options: WarmStartOptions,
    *,
    on_progress: OnProgress | None = None,
) -> WarmStartProgress:
    """Train `model` in place until it reaches the target accuracy; returns where it stopped.

    Accuracy is exact, not sampled: the probability that sampling at temperature 1 writes the answer and stops is the
    product of its tokens' probabilities. It is taken on each batch before the batch is learned.

    Raises: InvalidInput when the target is not reached within `max_steps`, or the examples run out.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0, fused=True)
    recent: deque[float] = deque(maxlen=_MEASURED_STEPS)
    model.train()
    for step in range(options.max_steps):
        lesson = _lesson(tokenizer, _take(examples, options.batch_size))
        logprobs = _answer_logprobs(model, lesson)
        recent.append(_mean_probability(logprobs.detach(), lesson))
        progress = WarmStartProgress(
            step=step,
            loss=float(-logprobs.detach().mean()),
            accuracy=sum(recent) / len(recent),
            target_accuracy=options.target_accuracy,
        )
        is_done = len(recent) == _MEASURED_STEPS and progress.accuracy >= options.target_accuracy
        if on_progress is not None and (is_done or step % options.report_every_steps == 0):
            on_progress(progress)
        if is_done:
            model.eval()
            return progress
        (-logprobs.mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    raise InvalidInput(
        f"the warm start reached accuracy {progress.accuracy:.2f} in {options.max_steps} steps, not the "
        f"{options.target_accuracy:.2f} it was asked for: give it more max_steps, a larger model or an easier dataset"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lesson:
    """A batch of examples as tensors. `places`, `targets` and `owners` are `[answer tokens]`: where in the flattened
    `ids` each answer token is predicted, what it is, and which example it belongs to."""

    ids: Tensor
    places: Tensor
    targets: Tensor
    owners: Tensor


def _take(examples: Iterator[Example], count: int) -> list[Example]:
    taken = list(islice(examples, count))
    if len(taken) < count:
        raise InvalidInput(f"a warm start needs an endless stream of examples; it ended {count - len(taken)} short")
    return taken


def _lesson(tokenizer: ChatTokenizer, batch: list[Example]) -> _Lesson:
    pairs = [_tokens(tokenizer, question, answer) for question, answer in batch]
    width = max(len(prompt) + len(answer) - 1 for prompt, answer in pairs)
    ids = np.zeros((len(batch), width), dtype=np.int64)
    places: list[Int32Array] = []
    for row, (prompt, answer) in enumerate(pairs):
        ids[row, : len(prompt) + len(answer) - 1] = np.concatenate([prompt, answer[:-1]])
        places.append(row * width + len(prompt) - 1 + np.arange(len(answer), dtype=np.int32))
    answers = [answer for _, answer in pairs]
    return _Lesson(
        ids=torch.from_numpy(ids),
        places=torch.from_numpy(np.concatenate(places)).long(),
        targets=torch.from_numpy(np.concatenate(answers)).long(),
        owners=torch.from_numpy(np.repeat(np.arange(len(batch)), [len(answer) for answer in answers])),
    )


def _tokens(tokenizer: ChatTokenizer, question: str, answer: str) -> tuple[Int32Array, Int32Array]:
    """Prompt and answer, the answer with the token that ends it."""
    prompt = tokenizer.encode_chat([{"role": "user", "content": question}])
    return prompt, np.append(tokenizer.encode(answer), np.int32(tokenizer.stop_tokens[0]))


def _answer_logprobs(model: PreTrainedModel, lesson: _Lesson) -> Tensor:
    """Logprob of each answer token given the right ones before it: `[answer tokens]`."""
    logprobs = logits_at(model, hidden_states(model, lesson.ids), lesson.places).log_softmax(-1)
    return logprobs.gather(-1, lesson.targets[:, None])[:, 0]


def _mean_probability(logprobs: Tensor, lesson: _Lesson) -> float:
    """Probability of a whole answer, averaged over the examples."""
    whole = torch.zeros(len(lesson.ids)).index_add_(0, lesson.owners, logprobs)
    return float(whole.exp().mean())
