"""Optimizer batches for tests of advantages and losses, in float64, and ranks that are threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any, NamedTuple, TypeVar

import torch
from hypothesis import strategies as st
from torch import Tensor

from astraflow.algorithms.losses.base import Loss
from astraflow.algorithms.tokens import BatchStatistics, Ranks, RowData, SingleRank, TokenData, TokenScores

T = TypeVar("T")


class Token(NamedTuple):
    """One counted token. The defaults are an on-policy token."""

    logprob: float = -1.0
    behaviour: float = -1.0
    advantage: float = 1.0
    proximal: float = -1.0
    reference: float = -1.0
    entropy: float = 0.5
    value: float = 0.0
    old_value: float = 0.0
    target: float = 0.0


Rows = list[list[Token]]
"""Tokens of each trajectory; a trajectory without tokens is not counted."""


logprobs = st.floats(-4, 0, width=32)
numbers = st.floats(-2, 2, width=32)
tokens = st.builds(
    Token,
    logprob=logprobs,
    behaviour=logprobs,
    advantage=st.sampled_from([-2.0, -0.3, 0.0, 0.5, 1.0]),
    proximal=logprobs,
    reference=logprobs,
    entropy=st.floats(0, 3, width=32),
    value=numbers,
    old_value=numbers,
    target=numbers,
)
rows = st.lists(st.lists(tokens, min_size=0, max_size=4), min_size=1, max_size=4).filter(any)
"""Batches with at least one token."""


def random_rows(generator: torch.Generator, *, rows: int, tokens: int) -> Rows:
    """Returns trajectories of different lengths, some without tokens, near the policy that sampled them."""
    lengths = torch.randint(0, tokens + 1, (rows,), generator=generator).tolist()
    lengths[0] = tokens
    return [[_random_token(generator) for _ in range(length)] for length in lengths]


def _random_token(generator: torch.Generator) -> Token:
    noise = torch.randn(9, generator=generator, dtype=torch.float64).tolist()
    behaviour = -abs(noise[0]) - 0.1
    return Token(
        logprob=behaviour + 0.4 * noise[1],
        behaviour=behaviour,
        advantage=noise[2],
        proximal=behaviour + 0.2 * noise[3],
        reference=behaviour + 0.3 * noise[4],
        entropy=abs(noise[5]),
        value=noise[6],
        old_value=noise[7],
        target=noise[8],
    )


@dataclass(frozen=True, kw_only=True)
class TestBatch:
    """A whole optimizer batch. The tensors are float64, `[tokens]`."""

    __test__ = False

    tokens: TokenData
    statistics: BatchStatistics
    logprobs: Tensor
    entropy: Tensor
    values: Tensor

    def scores(self, indices: Tensor) -> TokenScores:
        """Returns the scores of these tokens, as leaves that collect gradients."""
        logprobs = self.logprobs[indices].requires_grad_()
        return TokenScores(
            logprobs=logprobs,
            entropy=self.entropy[indices].requires_grad_(),
            values=self.values[indices].requires_grad_(),
            top_logprobs=torch.stack([logprobs, logprobs - 1], 1) - math.log(2),
        )


def batch_of(rows: Rows, *, groups: Sequence[int] | None = None, slots: Sequence[int] | None = None) -> TestBatch:
    """Returns the batch of these trajectories; by default all are in one group."""
    all_tokens = [token for row in rows for token in row]
    owners = [row for row, row_tokens in enumerate(rows) for _ in row_tokens]
    columns = torch.tensor(all_tokens, dtype=torch.float64).reshape(len(all_tokens), len(Token._fields)).unbind(1)
    column = dict(zip(Token._fields, columns, strict=True))
    lengths = torch.tensor([len(row) for row in rows])
    data = RowData(
        groups=torch.tensor(groups or [0] * len(rows)),
        slots=torch.tensor(slots or [0] * len(rows)),
        is_counted=lengths > 0,
        weights=(lengths > 0).float(),
        lengths=lengths,
        is_truncated=torch.zeros(len(rows), dtype=torch.bool),
    )
    tokens = TokenData(
        row_indices=torch.tensor(owners, dtype=torch.long),
        turn_indices=torch.tensor([index // 2 for row in rows for index in range(len(row))], dtype=torch.long),
        behaviour_logprobs=column["behaviour"],
        is_own_version=torch.ones(len(all_tokens), dtype=torch.bool),
        advantages=column["advantage"],
        current_logprobs=column["logprob"],
        proximal_logprobs=column["proximal"],
        reference_logprobs=column["reference"],
        teacher_logprobs=column["reference"],
        teacher_top_tokens=torch.tensor([[0, 1]]).expand(len(all_tokens), 2),
        teacher_top_logprobs=torch.stack([column["reference"], column["proximal"]], 1) - math.log(2),
        values=column["old_value"],
        returns=column["target"],
    )
    statistics = BatchStatistics(
        tokens=len(all_tokens), trajectories=int((lengths > 0).sum()), lengths=lengths, rows=data
    )
    return TestBatch(
        tokens=tokens,
        statistics=statistics,
        logprobs=column["logprob"],
        entropy=column["entropy"],
        values=column["value"],
    )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Loss, its derivatives by logprob, entropy and value of each token, and summed metrics."""

    loss: float
    logprob_grad: Tensor
    entropy_grad: Tensor
    value_grad: Tensor
    metrics: dict[str, float]


def outcome(loss: Loss, batch: TestBatch, split: Sequence[Sequence[Sequence[int]]] | None = None) -> Outcome:
    """Computes the loss of a batch. split: rank -> micro-batch -> rows; by default one rank with one micro-batch."""
    split = split or [[list(range(len(batch.statistics.lengths)))]]
    parts = on_ranks(len(split), lambda rank, ranks: _on_rank(loss, batch, split[rank], ranks))
    grads = [torch.zeros_like(batch.logprobs) for _ in range(3)]
    total, metrics = 0.0, dict[str, float]()
    for indices, scores, result in (part for parts_of_rank in parts for part in parts_of_rank):
        total += float(result.loss.detach())
        for grad, leaf in zip(grads, (scores.logprobs, scores.entropy, scores.values), strict=True):
            grad[indices] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        for name, value in result.metric_sums.items():
            metrics[name] = metrics.get(name, 0.0) + float(value)
    return Outcome(loss=total, logprob_grad=grads[0], entropy_grad=grads[1], value_grad=grads[2], metrics=metrics)


def _on_rank(loss: Loss, batch: TestBatch, micro_batches: Sequence[Sequence[int]], ranks: Ranks) -> list[Any]:
    indices = [_tokens_of(batch, rows) for rows in micro_batches]
    state = loss.prepare(batch.tokens.select(torch.cat(indices)), batch.statistics, ranks)
    parts = []
    for chosen in indices:
        scores = batch.scores(chosen)
        result = loss(scores, batch.tokens.select(chosen), batch.statistics, state)
        if result.loss.requires_grad:
            result.loss.backward()
        parts.append((chosen, scores, result))
    return parts


def _tokens_of(batch: TestBatch, rows: Sequence[int]) -> Tensor:
    places = [(batch.tokens.row_indices == row).nonzero()[:, 0] for row in rows]
    return torch.cat([torch.zeros(0, dtype=torch.long), *places])


class ThreadRanks:
    """Collective operations over threads; `rank` is the calling thread's."""

    def __init__(self, rank: int, barrier: Barrier, shared: list[Tensor]) -> None:
        self._rank, self._barrier, self._shared = rank, barrier, shared

    def sum(self, values: Tensor) -> Tensor:
        return torch.stack(self._all(values)).sum(0)

    def gather(self, values: Tensor) -> Tensor:
        return torch.cat(self._all(values))

    def _all(self, values: Tensor) -> list[Tensor]:
        self._shared[self._rank] = values
        self._barrier.wait(timeout=20)
        gathered = list(self._shared)
        self._barrier.wait(timeout=20)
        return gathered


def on_ranks(count: int, call: Callable[[int, Ranks], T]) -> list[T]:
    """Runs `call(rank, ranks)` on as many ranks; returns the results in rank order."""
    if count == 1:
        return [call(0, SingleRank())]
    barrier, shared = Barrier(count), [torch.zeros(0)] * count
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda rank: call(rank, ThreadRanks(rank, barrier, shared)), range(count)))


def close(actual: float, expected: float) -> bool:
    """Returns whether two float64 results agree to 1e-9."""
    return math.isclose(actual, expected, rel_tol=1e-9, abs_tol=1e-9)


def assert_close(actual: Tensor, expected: Sequence[float] | Tensor) -> None:
    """Asserts that two float64 results agree to 1e-9."""
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)
