"""Warm start: short supervised training on correct answers, until the model has an accuracy that RL can improve."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.base import Example, OnProgress, Transcript, WarmStartOptions, WarmStartProgress
from astraflow.models.causal import hidden_states, logits_at
from astraflow.models.tokenizers import ChatTokenizer

_MEASURED_STEPS = 3
"""Number of batches over which accuracy is averaged before it may end the warm start."""


def warm_start(
    model: PreTrainedModel,
    tokenizer: ChatTokenizer,
    examples: Iterator[Example],
    options: WarmStartOptions,
    *,
    on_progress: OnProgress | None = None,
) -> WarmStartProgress:
    """Trains `model` in place until it reaches the target accuracy, or for `steps`; returns the final progress.

    Accuracy is exact, not sampled: the probability that sampling at temperature 1 writes the answer and stops is the
    product of its tokens' probabilities. It is measured on each batch before the batch is trained.

    Raises: InvalidInput when the target is not reached within `max_steps`, or the examples run out.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0, fused=True)
    recent: deque[float] = deque(maxlen=_MEASURED_STEPS)
    model.train()
    target = options.target_accuracy if options.steps is None else None
    steps = options.steps or options.max_steps
    for step in range(steps):
        batch = _build_batch(tokenizer, _take(examples, options.batch_size), options.system)
        logprobs = _answer_logprobs(model, batch)
        recent.append(_mean_probability(logprobs.detach(), batch))
        progress = WarmStartProgress(
            step=step,
            loss=float(-logprobs.detach().mean()),
            accuracy=sum(recent) / len(recent),
            target_accuracy=target,
            steps=steps,
        )
        is_done = target is not None and len(recent) == _MEASURED_STEPS and progress.accuracy >= target
        if on_progress is not None and (is_done or step % options.report_every_steps == 0):
            on_progress(progress)
        if is_done:
            model.eval()
            return progress
        (-logprobs.mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if target is None:
        model.eval()
        return progress
    raise InvalidInput(
        f"cannot finish the warm start: accuracy is {progress.accuracy:.2f} after {options.max_steps} steps, below the "
        f"target {options.target_accuracy:.2f}; raise max_steps, use a larger model or an easier dataset",
        code="model.warm_start_target_missed",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _WarmStartBatch:
    """Batch of examples as tensors. `positions`, `targets` and `rows` are `[answer tokens]`: position in the flattened
    `ids` that predicts the token, the token, and the index of its example."""

    ids: Tensor
    positions: Tensor
    targets: Tensor
    rows: Tensor


def _take(examples: Iterator[Example], count: int) -> list[Example]:
    batch = list(islice(examples, count))
    if len(batch) < count:
        raise InvalidInput(
            f"cannot run the warm start: the stream of examples ended {count - len(batch)} examples short of a batch; "
            "use an endless stream",
            code="model.examples_exhausted",
        )
    return batch


def _build_batch(tokenizer: ChatTokenizer, batch: list[Example], system: str) -> _WarmStartBatch:
    transcripts = [_transcript(tokenizer, system, example) for example in batch]
    width = max(len(transcript.tokens) for transcript in transcripts)
    ids = np.zeros((len(batch), width), dtype=np.int64)
    is_target = np.zeros((len(batch), width), dtype=np.bool_)
    for row, transcript in enumerate(transcripts):
        ids[row, : len(transcript.tokens)] = transcript.tokens
        is_target[row, : len(transcript.tokens)] = transcript.is_written
    rows, columns = np.nonzero(is_target)
    return _WarmStartBatch(
        ids=torch.from_numpy(ids[:, :-1]),
        positions=torch.from_numpy(rows * (width - 1) + columns - 1),
        targets=torch.from_numpy(ids[is_target]),
        rows=torch.from_numpy(rows),
    )


def _transcript(tokenizer: ChatTokenizer, system: str, example: Example) -> Transcript:
    if isinstance(example, Transcript):
        return example
    prompt, answer = _tokens(tokenizer, system, *example)
    is_written = np.repeat([False, True], [len(prompt), len(answer)])
    return Transcript(tokens=np.concatenate([prompt, answer]), is_written=is_written)


def _tokens(
    tokenizer: ChatTokenizer, system: str, texts: tuple[str, ...], answer: str
) -> tuple[Int32Array, Int32Array]:
    """Returns the token ids of prompt and answer, the answer with its stop token."""
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": role, "content": text} for role, text in zip(cycle(("user", "assistant")), texts)]
    prompt = tokenizer.encode_chat(messages)
    return prompt, np.append(tokenizer.encode(answer), np.int32(tokenizer.stop_tokens[0]))


def _answer_logprobs(model: PreTrainedModel, batch: _WarmStartBatch) -> Tensor:
    """Returns the logprob of each answer token given the correct previous tokens: `[answer tokens]`."""
    logprobs = logits_at(model, hidden_states(model, batch.ids), batch.positions).log_softmax(-1)
    return logprobs.gather(-1, batch.targets[:, None])[:, 0]


def _mean_probability(logprobs: Tensor, batch: _WarmStartBatch) -> float:
    """Returns the probability of a whole answer, averaged over the examples."""
    whole = torch.zeros(len(batch.ids)).index_add_(0, batch.rows, logprobs)
    return float(whole.exp().mean())
